"""The admin API answers as Apache's does: steps that were recorded from the real one (`admin_recordings/record.py`)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.metadata.store import MetadataStore

RECORDINGS = Path(__file__).with_name("admin_recordings")


def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("admin_recordings_record", RECORDINGS / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDER = recorder()


async def forget_ports(store: MetadataStore) -> None:
    """The recorded standalone knew its ports when it was prepared; a test's broker gets them later."""
    await store.put("/admin/clusters/standalone", b'{"serviceUrl":"http://h:1","brokerServiceUrl":"pulsar://h:2"}')


def test_a_port_within_a_number_is_part_of_it() -> None:
    text = '{"url": "http://h:34217/", "blockSizeInBytes": 134217728}'
    assert RECORDER.plain(200, text, 34217) == {"blockSizeInBytes": 134217728, "url": "http://h:PORT/"}


@pytest.mark.parametrize("name", sorted(file.stem for file in RECORDINGS.glob("*.steps")))
async def test_answers_as_apache(memory_broker: MemoryBroker, name: str) -> None:
    await forget_ports(memory_broker.store)
    steps = list(RECORDER.steps_of(name))
    answers: list[list[Any]] = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    port = memory_broker.running.settings.web_service_port
    wrong: list[tuple[Any, ...]] = []
    async with aiohttp.ClientSession() as session:
        for step, (status, body) in zip(steps, answers, strict=True):
            url = memory_broker.admin_url + step.path.replace("{PORT}", str(port))
            headers = {"Content-Type": "application/json"}
            request = session.request(step.method, url, data=step.body, headers=headers, allow_redirects=False)
            async with request as answer:
                found = RECORDER.plain(answer.status, await answer.text(), port)
            if step.ours is not None:
                if answer.status != step.ours:
                    wrong.append((str(step), "ours", step.ours, answer.status, found))
            elif (answer.status, found) != (status, body):
                wrong.append((str(step), "Apache's", status, body, "ours", answer.status, found))
    assert not wrong
