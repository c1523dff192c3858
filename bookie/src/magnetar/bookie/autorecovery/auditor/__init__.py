"""The auditor: finds ledgers that lack copies, and marks them (BookKeeper: replication/Auditor)."""
