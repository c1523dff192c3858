"""Bundles of topics: which broker owns which, and how that is looked up and changed."""
