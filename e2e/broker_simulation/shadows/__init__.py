"""Topics with shadows, which other brokers of the cluster serve: a simulator of its own, with seeds of its own."""
