"""What an operator can do to a run, in one form for the API, the commands and the SDK.

`actions` says what there is; `order` does it from outside a hub, whether or not one is serving. A
hub that serves does them through its keeper (what is about a node) and its learner's loop (what is
about the run).
"""
