"""Words that every component uses: identifiers, errors, limits, clocks, settings, logging.

Imports nothing of Magnetar and does no IO of its own."""
