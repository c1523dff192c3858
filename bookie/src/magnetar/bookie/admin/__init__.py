"""A bookie's HTTP API under BookKeeper's routes, its metrics under BookKeeper's names, and its gRPC service."""
