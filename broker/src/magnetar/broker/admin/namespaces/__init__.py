"""Namespaces in the admin API."""
