"""The Kubernetes operator: keeps clusters of brokers, bookies and proxies as their resources say."""
