"""Which bookies an ensemble is made of (BookKeeper: EnsemblePlacementPolicy)."""
