"""The hub over HTTP: the API that dashboard, SDK and scripts use, its events, and /metrics.

Routes only translate: what is read comes from `ledger.browse` and `view`, what is done goes through
`control`. Everything is served from the hub's own trio process (`server`), reads of the ledger
happen in threads on a connection that cannot write.
"""
