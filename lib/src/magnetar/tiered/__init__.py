"""Tiered storage: closed ledgers in object stores, in Apache Pulsar's formats; written, read back, found, deleted."""
