"""Random histories over managed ledgers, cursors and deduplication, on virtual time."""
