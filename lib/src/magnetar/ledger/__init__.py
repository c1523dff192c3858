"""BookKeeper's client: ledgers striped over bookies, quorum appends, reads, recovery, ensemble change."""
