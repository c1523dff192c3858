"""The proxy: one address in front of a cluster of brokers."""
