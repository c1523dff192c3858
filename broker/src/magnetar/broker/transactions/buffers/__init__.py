"""What transactions write to topics: open, committed or aborted, and the snapshots by which the next owner knows."""
