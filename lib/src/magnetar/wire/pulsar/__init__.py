"""Pulsar's binary protocol: frames, commands, message metadata, batches. Bytes in, values out, and back."""
