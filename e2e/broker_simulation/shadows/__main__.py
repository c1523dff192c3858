"""Runs seeds: `python -m e2e.broker_simulation.shadows --seeds 1000`, `--seed N [--trace]`, `--mistake NAME`,
`--mistake all`."""

from __future__ import annotations

import sys

from e2e.simulation_runner.command import Simulator, main

if __name__ == "__main__":
    sys.exit(main(Simulator("e2e.broker_simulation.shadows", seeds_per_mistake=300)))
