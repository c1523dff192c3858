"""AutoRecovery: finds ledgers that lack replicas and copies their entries to other bookies."""
