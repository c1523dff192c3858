"""The operator on a real Kubernetes: real pods, stock clients inside and outside."""
