"""Sockets: the only asyncio protocol classes."""
