"""Pulsar's admin REST API over aiohttp: one file per resource."""
