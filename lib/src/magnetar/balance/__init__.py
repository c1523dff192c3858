"""Load management without IO: from a snapshot of the load to decisions, each with its reason."""
