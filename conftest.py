"""What holds for the tests of all parts: none of them may fail because the machine is slow or busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, settings
from magnetar.sim.virtual_time import loop_factories

# By default an example that takes more than 200 ms fails: on a machine that does a lot else, any may.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Modules may say that their tests run on virtual time."""
    assert isinstance(item, pytest.Function)
    return loop_factories(item.module)
