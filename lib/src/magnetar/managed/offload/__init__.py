"""Closed ledgers in tiered storage: which ones go there, how, and what is owed to be deleted."""
