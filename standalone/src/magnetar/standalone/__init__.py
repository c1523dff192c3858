"""A whole cluster in one process: the command line `magnetar` and the pytest plugin."""
