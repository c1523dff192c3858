"""The protocol server of a bookie: connections, requests of versions 2 and 3, answers (BookKeeper: proto)."""
