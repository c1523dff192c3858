"""What the operator wants to exist: resources in, manifests out. Pure."""
