"""What all simulators have in common: how a seed is run and judged, and the command line."""
