"""A walk through every subcommand of `pulsar-admin` and `pulsarctl`, and what they print against Apache's brokers."""
