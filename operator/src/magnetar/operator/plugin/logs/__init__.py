"""Logs of several pods: which, in which order, and how they look."""
