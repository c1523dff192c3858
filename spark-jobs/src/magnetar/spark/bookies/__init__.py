"""Reading past the brokers: the metadata store and the bookies (readMode `bookies`)."""
