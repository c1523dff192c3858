"""Managed ledgers: an endless log made of ledgers, with cursors."""
