"""Answers about rights from memory, and rights that change while sessions go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import pytest
from magnetar.broker.auth.access import AccessControl
from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.rules import Right
from magnetar.broker.resources import Resources
from magnetar.broker.session.access import SessionAccess
from magnetar.broker.testing.auth import ADMIN, access_settings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.metadata.memory import MemoryMetadataStore

TOPIC = TopicName.parse("persistent://acme/shop/t")


class Looking:
    """A session that is told to look at its rights again."""

    def __init__(self) -> None:
        self.told: list[set[str]] = []

    async def look_again(self, changed: set[str]) -> None:
        self.told.append(changed)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


async def test_a_super_user_needs_nothing_in_memory_and_others_are_not_known_there(store: MemoryMetadataStore) -> None:
    access = AccessControl(access_settings(), Resources(store), SystemClock(), lambda coroutine: coroutine.close())
    assert access.authorizer is not None
    assert access.authorizer.allows_on_topic_now(Principal(ADMIN), Right.PRODUCE, TOPIC) is True
    assert access.authorizer.allows_on_topic_now(Principal("nobody"), Right.PRODUCE, TOPIC) is None
    access.close()


async def test_what_changes_at_once_is_looked_at_once_and_the_first_change_is_enough(
    store: MemoryMetadataStore,
) -> None:
    spawned: list[Coroutine[Any, Any, None]] = []
    access = AccessControl(access_settings(), Resources(store), SystemClock(), spawned.append)
    session = Looking()
    access._rights_changed("acme")
    assert spawned == [], "nobody is there whose rights could be less"
    access.enter(cast("SessionAccess", session))
    access._rights_changed("acme/shop")
    assert len(spawned) == 1
    access._rights_changed("acme")
    assert len(spawned) == 1
    await spawned.pop()
    assert session.told == [{"acme/shop", "acme"}]
    access._rights_changed("acme")
    await spawned.pop()
    assert session.told[1:] == [{"acme"}]
    access.close()
