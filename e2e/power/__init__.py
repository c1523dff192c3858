"""Power cuts: disks that keep what was synced, and lose, tear or reorder the rest, under our own processes."""
