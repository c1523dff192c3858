"""TLS over a transport, without memory of its own for what passes."""
