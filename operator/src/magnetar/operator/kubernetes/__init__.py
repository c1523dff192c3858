"""Kubernetes' API: its kinds, its errors, logging in, and one client for the operator, the plugin and tests."""
