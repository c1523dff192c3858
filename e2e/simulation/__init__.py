"""Bookies, writers, readers and recoverers on the deterministic simulator, and what must hold of them."""
