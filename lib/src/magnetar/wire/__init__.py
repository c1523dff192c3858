"""SANS-IO protocols: bytes in, events out, and back; any chunking, no socket, no clock."""
