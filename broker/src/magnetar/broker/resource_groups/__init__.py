"""Limits that hold for many topics as a sum, over all brokers of the cluster."""
