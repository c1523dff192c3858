"""`magnetar` with a planted mistake: `python -m e2e.disturbing.mistaken NAME bookie run --conf …`."""

from __future__ import annotations

import sys

from magnetar.cli import __main__ as program

from e2e.disturbing.mistakes import MISTAKES
from e2e.simulation.planting import planted

if __name__ == "__main__":
    with planted(MISTAKES[sys.argv.pop(1)]):
        program.main()
