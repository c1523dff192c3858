"""Writing: rows of data frames to topics, each stored once."""
