"""How far drains and replacements are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.core.text import human_bytes
from magnetar.operator.children.naming import REPLACE_ANNOTATION, to_be_replaced
from magnetar.operator.plugin.status_view import matters
from magnetar.operator.plugin.views import PodView, PoolSummary
from magnetar.operator.resources.bookie import BookieMember

if TYPE_CHECKING:
    from magnetar.control.generated.broker_pb2 import BrokerDrain


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at it."""

    text: str
    done: int = 0
    total: int = 0
    """0: not known yet, or nothing to count."""
    finished: bool = False
    failed: bool = False
    """It will not come to an end."""


def is_to_be_replaced(pod: PodView | None, member: BookieMember | None) -> bool:
    """Whether its pod says so; or the operator, of an earlier pod than this one."""
    if pod is not None and REPLACE_ANNOTATION in pod.annotations:
        return to_be_replaced(pod.annotations)
    remembered = member.replacement if member is not None else None
    return remembered is not None and (pod is None or pod.uid != remembered.pod_uid)


def replacement_progress(name: str, uid: str, pod: PodView | None, pool: PoolSummary | None) -> Progress:
    """How far the replacement of a bookie is whose pod had this uid when it began."""
    if pool is None:
        return Progress(text="its pool is gone", finished=True, failed=True)
    member = pool.member(name)
    state = member.state if member is not None else ""
    if not is_to_be_replaced(pod, member):
        if pod is None or (pod.uid != uid and state != "Writable"):
            return Progress(text="it starts with empty volumes", done=1, total=1)
        if pod.uid != uid:
            return Progress(text="replaced: it takes writes again", done=1, total=1, finished=True)
        return Progress(text="it is not to be replaced any more", finished=True, failed=True)
    drain = member.drain if member is not None else None
    if drain is None or drain.step == "None":
        return Progress(text=_waits_for(name, pool) or (member.message if member is not None else "") or "waiting")
    words = [drain.step]
    if drain.ledgers_total and drain.step != "Done":
        words.append(f"{drain.ledgers_left} of {drain.ledgers_total} ledgers left")
    if drain.bytes_per_second:
        words.append(f"{human_bytes(drain.bytes_per_second)}/s")
    if drain.message:
        words.append(drain.message)
    done = drain.ledgers_total - drain.ledgers_left
    return Progress(text=", ".join(words), done=done, total=drain.ledgers_total)


def _waits_for(name: str, pool: PoolSummary) -> str:
    """What the pool's conditions say of it."""
    messages = [found.message for found in pool.status.conditions if matters(found) and name in found.message]
    return messages[0] if messages else ""


def broker_drain_progress(drain: BrokerDrain) -> Progress:
    """How far the drain of a broker is, which gives its bundles away."""
    from magnetar.control.generated import broker_pb2

    total, left = drain.bundles_total, drain.bundles_left
    if drain.step == broker_pb2.BROKER_DRAIN_STEP_DONE:
        return Progress(text="it serves nothing any more", done=total, total=total, finished=True)
    if drain.step != broker_pb2.BROKER_DRAIN_STEP_RUNNING:
        return Progress(text="the drain was cancelled", finished=True, failed=True)
    words = [f"{left} of {total} bundles left"]
    words += [f"{one.bundle}: {one.reason}" for one in drain.blockers[:1]]
    words += [f"{len(drain.blockers) - 1} more are held up"] if len(drain.blockers) > 1 else []
    return Progress(text=", ".join(words), done=total - left, total=total)
