"""Compaction of topics: the last message of each key is copied into a ledger, which readers then get instead."""
