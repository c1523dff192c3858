"""The disturbances of `e2e.disturbing` on the bookies of a storm, and on the metadata store of its writers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from functools import partial

from e2e.disturbing import control
from e2e.disturbing.mistakes import FORGETFUL_DISK
from e2e.disturbing.relay import Relay
from e2e.disturbing.storms import (
    OFTEN_CHECKPOINTS,
    ClockJumps,
    DiskStalls,
    LostAnswers,
    Stops,
    Trouble,
    disturb_all,
    registrations,
)
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBookie

FAULTS = ("clock", "stall", "answers", "stops")


def prepare(
    fault: str,
    cluster: Cluster,
    bookies: Sequence[OurBookie],
    rng: random.Random,
    stack: contextlib.ExitStack,
    mistake: str,
) -> tuple[Trouble | None, str]:
    """What makes the trouble, if it is one of these faults, and the metadata store for the writers.

    Before the bookies start."""
    store_url = f"zk:{cluster.zookeeper.address}"
    for bookie in bookies:
        bookie.mistake = "" if mistake == FORGETFUL_DISK else mistake
    if fault == "stops":
        return Stops(bookies, rng), store_url
    if fault == "answers":
        relays = [stack.enter_context(Relay([cluster.zookeeper.address])) for _ in range(len(bookies) + 1)]
        for bookie, relay in zip(bookies, relays, strict=False):
            bookie.metadata_uri = f"metadata-store:zk:{relay.address}"
        # Ledgers begin and end all the time: nobody has to be made to write.
        return LostAnswers(relays, rng), f"zk:{relays[-1].address}"
    if fault in ("clock", "stall"):
        disturbances = disturb_all(bookies, control.build(cluster.folder), cluster.folder)
        if fault == "stall":
            for bookie in bookies:
                bookie.settings |= OFTEN_CHECKPOINTS
            return DiskStalls(disturbances, rng, forgetful=mistake == FORGETFUL_DISK), store_url
        paths = [f"/ledgers/available/{bookie.id}" for bookie in bookies]
        return ClockJumps(list(disturbances.values()), partial(registrations, store_url, paths), rng), store_url
    return None, store_url
