"""Transaction buffers: a topic's open, committed and aborted messages, and the snapshots for its next owner."""
