"""Topics and their subscriptions in the admin API."""
