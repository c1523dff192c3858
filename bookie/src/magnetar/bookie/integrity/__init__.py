"""What a bookie does about entries that it has lost (BookKeeper: bookie/datainteg)."""
