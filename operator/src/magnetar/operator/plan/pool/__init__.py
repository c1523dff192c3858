"""The plan of a Bookie, a pool of bookies. Pure."""
