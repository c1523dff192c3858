"""A deterministic simulator: an event loop on virtual time, a network and disks that fail by a seed."""
