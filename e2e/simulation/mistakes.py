"""Known protocol mistakes, planted in the real code for a run: the simulator must find each of them."""

from __future__ import annotations

from typing import Final

from e2e.simulation.mistakes_of_bookies import BOOKIE_MISTAKES
from e2e.simulation.mistakes_of_clients import CLIENT_MISTAKES
from e2e.simulation.mistakes_of_topics import TOPIC_MISTAKES
from e2e.simulation.planting import Mistake

MISTAKES: Final[dict[str, Mistake]] = {**CLIENT_MISTAKES, **BOOKIE_MISTAKES, **TOPIC_MISTAKES}
