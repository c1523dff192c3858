"""Policies in force: what topic, namespace and broker say, the nearest first, and what enforces them."""
