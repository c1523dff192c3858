"""Known mistakes, planted in the real code for a run: the simulator must find each of them."""

from __future__ import annotations

from typing import Final

from e2e.broker_simulation.compaction.mistakes import COMPACTION_MISTAKES
from e2e.broker_simulation.mistakes_of_dispatch import DISPATCH_MISTAKES
from e2e.broker_simulation.mistakes_of_owners import OWNER_MISTAKES
from e2e.broker_simulation.mistakes_of_proxies import PROXY_MISTAKES
from e2e.broker_simulation.mistakes_of_topics import TOPIC_MISTAKES
from e2e.broker_simulation.read_only.mistakes import READ_ONLY_MISTAKES
from e2e.broker_simulation.regions.mistakes import REGION_MISTAKES
from e2e.broker_simulation.transactions.mistakes import TRANSACTION_MISTAKES
from e2e.simulation.planting import Mistake

MISTAKES: Final[dict[str, Mistake]] = {
    **COMPACTION_MISTAKES,
    **DISPATCH_MISTAKES,
    **OWNER_MISTAKES,
    **PROXY_MISTAKES,
    **READ_ONLY_MISTAKES,
    **REGION_MISTAKES,
    **TOPIC_MISTAKES,
    **TRANSACTION_MISTAKES,
}
