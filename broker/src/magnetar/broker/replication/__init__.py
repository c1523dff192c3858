"""Messages of topics on their way to other clusters."""
