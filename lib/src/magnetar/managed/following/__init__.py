"""Managed ledgers that another process writes: read, followed and never changed."""
