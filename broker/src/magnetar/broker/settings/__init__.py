"""What an operator may set on a broker, and under which names."""
