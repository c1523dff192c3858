"""Transactions in the simulator of broker clusters: who uses them, what must hold of them, and known mistakes."""
