"""The brokers of the cluster: where they are, and how this one asks them."""
