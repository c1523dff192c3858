"""Subscriptions: read for their consumers, acknowledged, told of."""
