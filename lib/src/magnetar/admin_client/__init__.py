"""The client of brokers' admin API over HTTP: redirects, credentials, bounds of answers and what an error says."""
