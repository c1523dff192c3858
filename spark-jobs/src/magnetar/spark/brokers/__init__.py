"""Reading through brokers: admin API, catalog and entries (readMode `brokers`), and their errors."""
