"""Whole clusters on simulated time: brokers, bookies, metadata and clients; every promise to clients is checked."""
