"""Messages' payloads as columns and back, by the schemas that Pulsar's clients register."""
