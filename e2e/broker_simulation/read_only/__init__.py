"""Brokers that only read: their hosts, what goes wrong with them, what must hold, and known mistakes."""
