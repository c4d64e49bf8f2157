"""SQLite: what the hub acknowledged is in it. Asked through `ledger.Ledger` alone."""
