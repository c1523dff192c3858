"""Garbage collection of a ledger directory: deleted ledgers leave the index, empty entry logs the disk."""
