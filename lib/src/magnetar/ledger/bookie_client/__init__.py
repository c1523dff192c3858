"""The client of single bookies: connections, adds and reads that are under way (BookKeeper: proto/BookieClient)."""
