"""What to do next, out of what is there and what is wanted. Pure: no loop, no clock, no network."""
