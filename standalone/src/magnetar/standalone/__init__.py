"""A whole cluster in one process, and the pytest plugin that starts it."""
