"""Topics whose entries are written elsewhere: shadows of other topics, and what read-only brokers follow."""
