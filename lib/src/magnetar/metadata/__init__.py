"""The metadata store: one interface, several backends, and the coordination built on it."""
