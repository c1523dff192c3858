"""Takes a bookie out of the cluster without losing a replica, whatever is killed on the way."""
