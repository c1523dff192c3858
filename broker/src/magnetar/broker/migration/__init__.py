"""Topics of a cluster or a namespace that moves to another cluster."""
