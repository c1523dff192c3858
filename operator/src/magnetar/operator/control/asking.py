"""Asking pods, many at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from magnetar.control.errors import ControlUnavailable
from magnetar.core.errors import PeerError
from magnetar.operator.control.controls import ASKED_AT_ONCE_MAX
from magnetar.operator.plan.facts import PodFacts

TRIED_MAX: Final = 2
"""Pods that are asked for what any of them knows, before that is left unknown for this pass."""

Answer = TypeVar("Answer")
Ask: TypeAlias = Callable[[str, str], Awaitable[Answer]]

logger: Final = logging.getLogger(__name__)


class ControlPortCalls:
    """Asks pods, some at a time; who does not answer is left out. What is asked takes an address and the token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def each(self, pods: Iterable[PodFacts], port: int, ask: Ask[Answer]) -> dict[str, Answer]:
        """Answers by pod. Only pods that run and have an address are asked."""
        asked = [pod for pod in pods if reachable(pod)]
        answers = await asyncio.gather(*(self.one(address(pod, port), ask) for pod in asked))
        return {pod.name: answer for pod, answer in zip(asked, answers, strict=True) if answer is not None}

    async def first(self, addresses: Sequence[str], ask: Ask[Answer]) -> Answer | None:
        """The answer of the first that gives one, of `TRIED_MAX`."""
        for candidate in addresses[:TRIED_MAX]:
            if (answer := await self.one(candidate, ask)) is not None:
                return answer
        return None

    async def one(self, candidate: str, ask: Ask[Answer]) -> Answer | None:
        """Its answer; None: there was none, or it was a refusal."""
        try:
            async with self._turns:
                return await ask(candidate, self.token)
        except (ControlUnavailable, PeerError) as error:
            logger.debug("no answer: %s", error)
            return None


def reachable(pod: PodFacts) -> bool:
    """Whether to ask it makes sense."""
    return pod.phase == "Running" and bool(pod.address)


def address(pod: PodFacts, port: int) -> str:
    """`host:port` of one of a pod's ports."""
    return f"[{pod.address}]:{port}" if ":" in pod.address else f"{pod.address}:{port}"
