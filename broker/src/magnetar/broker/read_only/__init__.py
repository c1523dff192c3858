"""Serving consumers of topics that another broker writes: from the bookies, with nothing written to the topic."""
