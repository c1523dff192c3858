"""Geo-replication: messages of a topic that go to other clusters, and those that come from them."""
