"""Every numeric setting of a broker has a range, and what passes `--check` starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from magnetar.broker.process import BrokerProcessSettings, broker_process_settings
from magnetar.broker.settings.names import SETTINGS, known_names
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.errors import SettingError, SettingErrors
from magnetar.core.setting import Row
from magnetar.core.settings_file import GivenSettings, kind_of, range_of, unit_factor
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

NUMBERS: Final = [(row, name) for row in SETTINGS.rows for name in row.names if range_of(row, name) is not None]
PORTS: Final = ("brokerServicePort", "brokerServicePortTls", "webServicePort", "webServicePortTls")
"""Those of tests are free ones."""

SOME: Final = {row.owner: row.owner() for row, _ in NUMBERS if not row.shared}
"""A settings object of each class."""


def checked(**values: str) -> BrokerProcessSettings:
    """What `--check` makes of a configuration."""
    found = GivenSettings(known_names())
    with found.gathering():
        for name, value in {"clusterName": "c", "metadataStoreUrl": "memory:", **values}.items():
            found.add(name, value, "here")
        return broker_process_settings(found)


def problem_of(work: Callable[[], object]) -> str | None:
    try:
        work()
    except SettingError as error:
        return str(error)
    return None


def bounds(row: Row, name: str) -> tuple[Fraction, Fraction]:
    found = range_of(row, name)
    assert found is not None
    return found


def default_of(row: Row) -> Any:
    return next(one.default for one in fields(row.owner) if one.name == row.path.rpartition(".")[2])


def test_every_number_has_a_range_that_its_default_is_in() -> None:
    numeric = {int, float, int | None, float | None}
    for row in SETTINGS.rows:
        if kind_of(row) in numeric and row.words is None:
            for name in row.names:
                low, high = bounds(row, name)
                assert low < high < 2**63, name
                default = default_of(row)
                if default is not None:
                    written = Fraction(str(default)) / unit_factor(row, name)
                    assert low <= written <= high, name
                    assert row.below_zero is None or low < 0, name


@pytest.mark.parametrize(("row", "name"), NUMBERS, ids=[name for _, name in NUMBERS])
def test_what_is_outside_is_refused_by_name_value_and_range(row: Row, name: str) -> None:
    low, high = bounds(row, name)
    for wrong in (int(low) - 1, int(high) + 1):
        with pytest.raises(SettingError, match=rf"here: {name} is '{wrong}', and not a (whole )?number") as refused:
            checked(**{name: str(wrong)})
        if len(str(wrong).lstrip("-")) < 19:
            assert " from " in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"), [("managedLedgerCacheSizeMB", "-1"), ("managedLedgerMaxSizePerLedgerMbytes", "-1")]
)
def test_what_cannot_start_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=rf"{name} is '-1', and not a number from 0 to 2147483647 of MIB"):
        checked(**{name: value})


def test_what_apaches_takes_has_its_meaning() -> None:
    made = checked(
        managedLedgerDefaultMarkDeleteRateLimit="0",
        managedLedgerMaxEntriesPerLedger="0",
        maxTenants="-1",
        maxUnackedMessagesPerConsumer="-5",
        defaultRetentionTimeInMinutes="-1",
        keepAliveIntervalSeconds="0",
    )
    assert (made.managed.mark_delete_rate, made.managed.max_entries_per_ledger) == (0, 0)
    assert made.broker.admin.tenants_max == 0
    assert made.broker.dispatch.unacked_messages_per_consumer_max == 0
    assert made.broker.policies.retention_minutes == -1
    assert made.broker.keep_alive_seconds == 0


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SettingErrors) as refused:
        checked(
            clusterName="",
            managedLedgerDefaultAckQuorum="3",
            maxMessageSize="many",
            metadataStoreUrl="ftp:x",
            tlsEnabledWithKeyStore="true",
            authorizationEnabled="true",
            brokerServicePortTls="6651",
            advertisedListeners="nonsense",
            webServicePort="",
            nobodyKnows="1",
        )
    told = [problem.split(",")[0] for problem in refused.value.problems]
    for part in (
        "here: there is no setting 'nobodyKnows'",
        "clusterName is not set",
        "managedLedgerDefaultAckQuorum 3",
        "here: maxMessageSize is 'many'",
        "metadata URL 'ftp:x'",
        "tlsEnabledWithKeyStore=true",
        "authorizationEnabled needs authenticationEnabled",
        "a TLS port needs tlsCertificateFilePath",
        "advertisedListeners",
        "webServicePort is empty",
    ):
        assert any(part in one for one in told), (part, told)
    assert len(told) == 10


def test_what_only_follows_from_another_mistake_is_not_told() -> None:
    with pytest.raises(SettingError) as refused:
        checked(authenticationEnabled="true", authenticationProviders="org.example.Mine", authorizationEnabled="true")
    assert not isinstance(refused.value, SettingErrors)
    assert "org.example.Mine; there are" in str(refused.value)


async def starts(made: BrokerProcessSettings) -> None:
    """A real broker, which opens a topic; what it refuses then, it refuses in the protocol's words."""
    broker = MemoryBroker(made.broker, ledgers=made.managed, balance=made.balance)
    await broker.start()
    try:
        client = await broker.connect()
        topic = "persistent://public/default/t"
        answer = await client.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=1)
        if answer.kind == pb.BaseCommand.ERROR:
            assert answer.body.error != pb.UnknownError, answer
    finally:
        await broker.stop()


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([one for one in NUMBERS if not one[0].shared]),
    st.text("0123456789+-.,eE \u0663", min_size=1, max_size=22),
)
def test_any_text_is_a_number_in_the_range_or_refused(of: tuple[Row, str], text: str) -> None:
    row, name = of
    found = GivenSettings([name])
    found.add(name, text, "here")
    if not text.strip():
        return
    low, high = bounds(row, name)
    refused = problem_of(lambda: found.build(SOME[row.owner]))
    if refused is None:
        assert low <= Fraction(text.strip()) <= high
    else:
        assert name in refused


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, str]:
    rows = draw(st.lists(st.sampled_from(NUMBERS), max_size=8, unique_by=lambda one: one[1]))
    values = {}
    for row, name in rows:
        low, high = int(bounds(row, name)[0]), int(bounds(row, name)[1])
        edges = st.sampled_from([low - 1, low, low + 1, 0, 1, -1, high - 1, high, high + 1])
        if name not in PORTS:
            values[name] = str(draw(edges | st.integers(low, high)))
    return values


# Each example is a broker of its own.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configurations())
def test_what_is_found_valid_starts(values: dict[str, str]) -> None:
    quorums = {f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    given_values = quorums | {name: value for name, value in values.items() if name not in quorums}
    refused = problem_of(lambda: checked(**given_values))
    if refused is None:
        asyncio.run(starts(checked(**given_values)))
    else:
        assert any(name in refused for name in values)


@pytest.mark.parametrize("end", [0, 1], ids=["lowest", "highest"])
def test_all_settings_at_their_bounds_start(end: int) -> None:
    """One by one they are among the examples above; here nothing hides in what no example had."""
    values = {}
    for row, name in NUMBERS:
        bound = bounds(row, name)[end]
        if (
            name not in PORTS
            and "Quorum" not in name
            and "Ensemble" not in name
            and name != "maxConcurrentTopicLoadRequest"
        ):
            values[name] = str(int(bound) if bound == int(bound) else float(bound))
    # Bounds that go together.
    values |= {"loadBalancerBalancedShedderTriggerRatio": "2", "loadBalancerBalancedShedderSettleRatio": "1"}
    quorums = {f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    asyncio.run(starts(checked(**quorums, **values)))
