"""Transactions: their coordinators, and what topics and subscriptions do for them."""
