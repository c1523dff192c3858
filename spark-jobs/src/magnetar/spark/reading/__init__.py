"""Batches and streams as Spark asks for them, and what an executor does with its slice."""
