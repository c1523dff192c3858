"""Where a bookie keeps its entries: write cache, entry logs, indexes (BookKeeper: bookie/storage/ldb)."""
