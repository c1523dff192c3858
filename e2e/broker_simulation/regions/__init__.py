"""Two clusters, and topics that are replicated from one to the other, or both ways."""
