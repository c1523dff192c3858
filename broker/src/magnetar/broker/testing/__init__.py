"""What tests of the broker share."""
