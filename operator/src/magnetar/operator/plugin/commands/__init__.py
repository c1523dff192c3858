"""The commands of `kubectl pulsar`, one module each."""
