"""The broker's part in load management: who is there, how loaded they are, what the leader does about it."""
