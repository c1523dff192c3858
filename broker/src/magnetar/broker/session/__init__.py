"""One client connection: its frames, and the commands that it sends."""
