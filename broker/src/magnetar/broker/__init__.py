"""The broker: topics, subscriptions and dispatch over managed ledgers, and the admin API."""
