"""What the driver decides: which entries are read, and by which task."""
