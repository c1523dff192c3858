"""Brokers that serve consumers of topics which other brokers write."""
