"""A Pulsar client for Magnetar's own parts: lookups, producers, readers and consumers on one event loop."""
