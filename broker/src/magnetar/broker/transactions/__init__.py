"""Transactions: which messages of a topic are committed, open or aborted, and who is told of it."""
