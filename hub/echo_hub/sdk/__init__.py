"""The Python SDK: a hub in your process, or a running one over HTTP. docs/sdk.md shows it.

Its names are exported by `echo_hub` itself.
"""
