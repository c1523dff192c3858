"""Logs of several pods as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import SettingError
from magnetar.operator.kubernetes.errors import NotFound
from magnetar.operator.kubernetes.pods import LogOptions
from magnetar.operator.plugin.commands import logs
from magnetar.operator.plugin.logs import merge
from magnetar.operator.plugin.logs.merge import Follower, Line, LogSource, merged, parse_line, read_log
from magnetar.operator.plugin.logs.view import LineDrawing
from magnetar.operator.plugin.options import Output
from operator_fakes.plugin_fakes import NAMESPACE, FakeKubernetes, cluster_manifest, pod_manifest


def options(pod: str, *, follow: bool = False) -> LogOptions:
    return LogOptions(namespace=NAMESPACE, pod=pod, container="broker", follow=follow)


def test_times_of_any_length_sort() -> None:
    raw = [b"2026-11-21T10:00:00.5Z c", b"2026-11-21T10:00:00Z a", b"2026-11-21T10:00:00.499999999Z b \xff\r"]
    found = sorted(parse_line("x", one) for one in raw)
    assert [line.text for line in found] == ["a", "b \ufffd", "c"]
    assert found[0].time == "2026-11-21T10:00:00.000000000Z"


@pytest.mark.parametrize(
    ("raw", "time", "text"),
    [
        (b"2026-11-21T01:30:00.5+02:00 a", "2026-11-20T23:30:00.500000000Z", "a"),
        (b"2026-11-21T10:00:00-05:30 a b", "2026-11-21T15:30:00.000000000Z", "a b"),
        (b"unable to retrieve container logs for containerd://1", "before", None),
        (b"0001-01-01T00:00:00+23:59 a", "before", None),
        (b"2026-99-21T10:00:00+01:00 a", "before", None),
        (b"", "before", None),
    ],
)
def test_times_are_utc_and_what_has_none_stays_where_it_is(raw: bytes, time: str, text: str | None) -> None:
    """Runtimes write their node's own time. A word as a time would stand behind all times that come."""
    assert parse_line("x", raw, "before") == Line(time, "x", raw.decode() if text is None else text)


async def test_logs_are_merged_by_time() -> None:
    kubernetes = FakeKubernetes()
    kubernetes.logs = {
        "a": [b"2026-11-21T10:00:00Z one", b"2026-11-21T10:00:02Z three"],
        "b": [b"2026-11-21T10:00:01Z two", b"2026-11-21T10:00:03Z four"],
    }
    logs = [await read_log(kubernetes, options(pod), pod) for pod in ("a", "b", "none")]
    assert [(line.source, line.text) for line in merged(logs)] == [
        *(("a", "one"), ("b", "two"), ("a", "three"), ("b", "four")),
    ]


class Restarting(FakeKubernetes):
    """Its logs end, and when they are asked for again there is one more line."""

    async def log(self, options: LogOptions) -> AsyncIterator[bytes]:
        self.log_options.append(options)
        for line in self.logs[options.pod]:
            yield line
        if len(self.log_options) > 1:
            yield b"2026-11-21T10:00:01Z two"
            await asyncio.sleep(3600)


async def test_a_log_that_ends_is_followed_again_without_its_old_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "WINDOW_SECONDS", 0.01)
    monkeypatch.setattr(merge, "AGAIN_SECONDS", 0.01)
    kubernetes = Restarting()
    kubernetes.logs["a"] = [b"2026-11-21T10:00:00.1Z one"]
    follower = Follower(kubernetes, lambda _: None)
    follower.follow([LogSource(name="a", options=options("a", follow=True))])
    found = []
    async with asyncio.timeout(30):
        async for lines in follower.lines():
            found += [line.text for line in lines]
            if "two" in found:
                break
    await follower.close()
    assert found == ["one", "two"]
    assert kubernetes.log_options[1].since_time == "2026-11-21T10:00:00.100000000Z"


async def test_no_line_hides_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet's own words have no time, and a node's clock may be put back."""
    monkeypatch.setattr(merge, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(merge, "AGAIN_SECONDS", 0.01)
    kubernetes = Restarting()
    kubernetes.logs["a"] = [
        b"2026-11-21T10:00:00.3Z one",
        b"unable to retrieve container logs",
        b"2026-11-21T10:00:00.3Z at once",
        b"2026-11-21T10:00:00.1Z earlier",
    ]
    follower = Follower(kubernetes, lambda _: None)
    follower.follow([LogSource(name="a", options=options("a", follow=True))])
    found: set[str] = set()
    async with asyncio.timeout(30):
        async for lines in follower.lines():
            found.update(line.text for line in lines)
            if "two" in found:
                break
    await follower.close()
    assert found == {"one", "unable to retrieve container logs", "at once", "earlier", "two"}
    assert kubernetes.log_options[1].since_time == "2026-11-21T10:00:00.100000000Z"


async def test_pods_that_go_are_followed_no_more() -> None:
    kubernetes = FakeKubernetes()
    kubernetes.logs = {"a": [], "b": []}
    follower = Follower(kubernetes, lambda _: None)
    sources = [LogSource(name=pod, options=options(pod, follow=True)) for pod in ("a", "b")]
    follower.follow(sources)
    await asyncio.sleep(0)
    follower.follow(sources[:1])
    follower.follow(sources[:1])
    await asyncio.sleep(0)
    await follower.close()
    assert [one.pod for one in kubernetes.log_options] == ["a", "b"]


class Recreated(FakeKubernetes):
    """Its pod is away for a moment, and there is one of the same name then."""

    async def log(self, options: LogOptions) -> AsyncIterator[bytes]:
        self.log_options.append(options)
        if len(self.log_options) == 1:
            raise NotFound("the pod is gone")
        yield b"2026-11-21T10:00:01Z back again"
        await asyncio.sleep(3600)


async def test_a_pod_of_the_same_name_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "WINDOW_SECONDS", 0.01)
    kubernetes = Recreated()
    follower = Follower(kubernetes, lambda _: None)
    source = LogSource(name="a", options=options("a", follow=True))
    follower.follow([source])
    for _ in range(3):
        await asyncio.sleep(0)
    follower.follow([source])
    async with asyncio.timeout(10):
        lines = await anext(follower.lines())
    await follower.close()
    assert [line.text for line in lines] == ["back again"]


async def test_following_ends_when_the_cluster_is_gone_and_nobody_says_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    kubernetes = FakeKubernetes(cluster_manifest(), pod_manifest("demo-broker-a", "broker"))
    kubernetes.logs = {"demo-broker-a": []}
    wanted = logs.LogRequest(
        component="broker",
        pods=(),
        everything=False,
        previous=False,
        follow=True,
        tail=10,
        since_seconds=None,
        output=Output.TEXT,
        times=False,
    )
    following = asyncio.create_task(logs._logs(kubernetes, None, wanted))
    while not kubernetes.log_options:
        await asyncio.sleep(0.01)
    del kubernetes.objects["PulsarCluster", NAMESPACE, "demo"]
    with pytest.raises(SettingError, match="demo is gone"):
        async with asyncio.timeout(5):
            await following


def test_lines_begin_in_the_same_column_and_errors_are_red() -> None:
    drawing = LineDrawing(times=True)
    drawing.sources(["demo-broker-x", "b"])
    shown = drawing.draw(Line("2026-11-21T10:00:00.123456789Z", "b", "ERROR no such setting"))
    assert shown.plain == "b              2026-11-21T10:00:00.123Z  ERROR no such setting"
    assert [str(span.style) for span in shown.spans][-1] == "red"
    calm = LineDrawing(times=False).draw(Line("", "b", "no errors here"))
    assert (calm.plain, [str(span.style) for span in calm.spans]) == ("b  no errors here", [])
