"""The bodies of `echo-node`'s commands. Each imports what it needs when it runs."""
