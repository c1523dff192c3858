"""The replication worker: copies what is marked to other bookies (BookKeeper: replication/ReplicationWorker)."""
