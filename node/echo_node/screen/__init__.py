"""The live screen of `echo-node join`."""
