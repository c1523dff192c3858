"""The plan of a PulsarCluster, component by component. Pure."""
