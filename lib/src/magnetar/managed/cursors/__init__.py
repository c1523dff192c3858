"""Cursors: what a reader of a managed ledger has acknowledged, and where that is kept."""
