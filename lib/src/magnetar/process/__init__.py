"""What all processes share: settings, logs, signals, a clean stop, the collector of cycles."""
