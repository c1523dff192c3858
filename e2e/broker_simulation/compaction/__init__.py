"""Compaction in the simulator of broker clusters: who asks for it and reads by it, what must hold, known mistakes."""
