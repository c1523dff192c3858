"""Brokers in the admin API: their state, settings, load and metrics."""
