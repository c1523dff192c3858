"""Mistakes."""
MISTAKES = {}
