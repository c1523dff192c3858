"""A real single-node Kubernetes out of ordinary registries, for machines that have none."""
