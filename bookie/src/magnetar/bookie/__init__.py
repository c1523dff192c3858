"""The bookie: a synced journal, entry logs, an index, and the protocol server in front of them."""
