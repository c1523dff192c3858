"""Known mistakes, planted in the real code for a run: the simulator must find each of them."""

from __future__ import annotations

from typing import Final

from e2e.simulation.planting import Mistake

MISTAKES: Final[dict[str, Mistake]] = {}
