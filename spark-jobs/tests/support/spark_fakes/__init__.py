"""Fakes and builders for tests of the data source and of its jobs."""
