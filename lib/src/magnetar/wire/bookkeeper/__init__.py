"""BookKeeper's bytes: frames, protocol versions 2 and 3, entries with their digests, ledger metadata."""
