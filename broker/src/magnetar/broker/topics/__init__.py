"""Topics: published to, kept, listed, expired, deleted."""
