"""Subscriptions whose position is the same in several clusters."""
