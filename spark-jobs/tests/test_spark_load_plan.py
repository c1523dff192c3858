"""Load planning without Spark: splits by the brokers' own rules, brokers by the hour, bookies by what is kept."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml
from magnetar.balance.settings import SplitSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.spark.errors import AccessRefused, ClusterUnreachable
from magnetar.spark.jobs import load_planning
from magnetar.spark.jobs.job import ConnectionChoices, job_errors
from magnetar.spark.jobs.load.capacity import GIB, PlanOptions, bookie_plan, broker_plan, hours_of_week, idle_share
from magnetar.spark.jobs.load.forecast import Method
from magnetar.spark.jobs.load.model import HOURS_PER_WEEK, LoadHistory
from magnetar.spark.jobs.load.plan import LoadPlan, ask_and_plan, cluster_resource, document, make_plan, yaml_of
from magnetar.spark.jobs.load.policies import HttpAdmin, Retention, StoragePolicies, topic_positions
from magnetar.spark.jobs.load.report import show
from magnetar.spark.jobs.load.splits import SplitAdvice, split_advice
from magnetar.spark.options.connection import ConnectionOptions
from rich.console import Console
from spark_fakes.loads import EXAMPLE, FIRST_HOUR, QUARTERS, BundleMade, ClusterMade, lived
from typer.testing import CliRunner

SMALL = ClusterMade(bundles={("public/default", one): BundleMade(msg_rate=1_000) for one in QUARTERS}, noise=0.02)
FULL = "0x00000000_0xffffffff"


@pytest.fixture(scope="module")
def example() -> LoadHistory:
    return lived(EXAMPLE)


@pytest.fixture(scope="module")
def plan(example: LoadHistory) -> LoadPlan:
    return make_plan(example, PlanOptions())


def advice_of(made: ClusterMade, settings: SplitSettings | None = None, **choices: Any) -> list[SplitAdvice]:
    return split_advice(lived(made), settings or SplitSettings(), **{"brokers": 2, "share": 0.9, **choices})


# --- splits


def test_a_bundle_that_will_pass_a_limit_is_split_in_as_many_parts_as_it_takes() -> None:
    # At the peak 1.5 times the mean, in both directions: 36 000 a second, growing by a tenth of 24 000 a week.
    made = replace(SMALL, bundles={("a/b", QUARTERS[1]): BundleMade(msg_rate=28_000)}, noise=0.0)
    (advice,) = advice_of(made)
    assert advice.parts == 3
    assert advice.certain
    assert "messages/s (limit 30,000)" in advice.reason
    assert [f"{boundary:08x}" for boundary in advice.boundaries] == ["55555555", "6aaaaaaa"]
    assert advice.command == (
        "pulsar-admin namespaces split-bundle a/b --bundle 0x40000000_0x80000000 --split-algorithm-name "
        "specified_positions_divide --split-boundaries 1431655765,1789569706 --unload"
    )


def test_growth_splits_what_is_not_too_large_yet() -> None:
    bundles = {("a/b", QUARTERS[index]): BundleMade(msg_rate=8_500) for index in range(4)}
    assert advice_of(replace(SMALL, bundles=bundles), brokers=4) == []
    grown = replace(SMALL, bundles=bundles, growth=0.1, days=28)
    found = advice_of(grown, SplitSettings(bundle_msg_rate_max=37_500), brokers=4)
    assert len(found) == 4
    assert {one.parts for one in found} == {2}
    assert all(" now)" in one.reason for one in found if one.certain)
    assert found[0].algorithm == "range_equally_divide"


@pytest.mark.parametrize(
    ("bundle", "settings", "words"),
    [
        (BundleMade(msg_rate=1, topics=1_500), SplitSettings(), "1,500 topics (limit 1,000)"),
        (BundleMade(msg_rate=1, sessions=2_500), SplitSettings(), "2,500 producers and consumers (limit 1,000)"),
        (BundleMade(msg_rate=100, message_bytes=MIB), SplitSettings(), "MiB/s (limit 100)"),
    ],
)
def test_each_limit_counts(bundle: BundleMade, settings: SplitSettings, words: str) -> None:
    (advice,) = advice_of(replace(SMALL, bundles={("a/b", QUARTERS[0]): bundle}), settings)
    assert words in advice.reason
    assert advice.parts >= 2


def test_a_bundle_of_one_topic_stays_whole_and_it_is_said_what_helps() -> None:
    (advice,) = advice_of(replace(SMALL, bundles={("a/b", QUARTERS[0]): BundleMade(msg_rate=50_000, topics=1)}))
    assert (advice.parts, advice.command) == (1, "")
    assert "(more) partitions" in advice.reason


def test_a_bundle_that_bears_most_of_the_load_is_split_for_balance() -> None:
    bundles = {("a/b", one): BundleMade(msg_rate=100) for one in QUARTERS}
    bundles["a/heavy", FULL] = BundleMade(msg_rate=3_000)
    (advice,) = advice_of(replace(SMALL, bundles=bundles), brokers=3)
    assert advice.bundle == f"a/heavy/{FULL}"
    assert advice.parts == 3
    assert "of what one of 3 brokers should" in advice.reason


def test_brokers_own_bundles_and_those_that_are_gone_are_let_be() -> None:
    bundles = {
        ("pulsar/system", FULL): BundleMade(msg_rate=50_000),
        ("pulsar/broker-0:8080", FULL): BundleMade(msg_rate=50_000),
        ("a/b", FULL): BundleMade(msg_rate=50_000),
    }
    history = lived(replace(SMALL, bundles=bundles))
    last_day = max(one.day for one in history.bundle_days)
    days = [one for one in history.bundle_days if one.namespace != "a/b" or one.day < last_day - 1]
    cut = LoadHistory(broker_hours=history.broker_hours, bundle_days=days)
    assert split_advice(cut, SplitSettings(), brokers=2, share=0.9) == []
    assert len(split_advice(history, SplitSettings(), brokers=2, share=0.9)) == 1


def test_a_namespace_gets_no_more_bundles_than_it_may() -> None:
    bundles = {("a/b", one): BundleMade(msg_rate=20_000) for one in QUARTERS}
    found = advice_of(replace(SMALL, bundles=bundles), SplitSettings(namespace_bundles_max=6), brokers=10)
    assert sum(one.parts for one in found) == 6
    assert "loadBalancerNamespaceMaximumBundles" in found[-1].reason


def test_boundaries_go_by_topics_where_these_are_known() -> None:
    made = replace(SMALL, bundles={("a/b", FULL): BundleMade(msg_rate=50_000)})
    positions = [10, 20, 30, 40, 50, 60, 70, 80]
    (advice,) = advice_of(made, SplitSettings(bundle_msg_rate_max=50_000), find_positions=lambda _: positions)
    assert advice.parts == 4
    edges = [0, *advice.boundaries, 100]
    assert [sum(low <= one < high for one in positions) for low, high in itertools.pairwise(edges)] == [2] * 4
    (advice,) = advice_of(made, find_positions=lambda _: [7, 7, 7])
    assert advice.parts == 1
    assert "no boundary can part" in advice.reason


# --- brokers


def test_what_a_broker_costs_idle_is_told_from_the_load() -> None:
    assert idle_share(lived(SMALL)) == pytest.approx(SMALL.idle_percent, rel=0.1)
    assert idle_share(lived(replace(SMALL, days=0 + 1, daily=0.0, noise=0.0, weekend=1.0))) in (0.0, pytest.approx(10))


def test_each_hour_needs_what_its_load_takes() -> None:
    # The peak of a working day: 4 bundles x 1000 x 2 x 1.5 = 12 000 messages a second, 120 % of a core.
    made = replace(SMALL, cores=1, noise=0.0, idle_percent=5.0)
    found = broker_plan(lived(made), PlanOptions(target_percent=50))
    assert found.binding == "CPU"
    assert found.peak == 3  # 120 / (50 - 5)
    assert (found.peak_hour % 24) in range(11, 20)
    assert found.recommended == 4
    assert min(found.needed) == 1
    assert found.autoscaling[0] < found.autoscaling[1] == 4
    needed = hours_of_week(found.needed, found.first_hour)
    assert max(needed["Sat"]) < max(needed["Wed"])
    assert next(iter(needed)) == "Mon"
    more = broker_plan(lived(made), PlanOptions(target_percent=50, growth_percent=100))
    assert more.peak > found.peak


def test_a_narrow_network_decides() -> None:
    found = broker_plan(lived(replace(SMALL, nic_kbits=40_000.0)), PlanOptions())
    assert found.binding.startswith("network")


def test_unknown_limits_do_not_decide() -> None:
    made = replace(SMALL, nic_kbits=0.0)
    found = broker_plan(lived(made), PlanOptions())
    assert found.binding == "CPU"
    assert "network in, network out" in found.notes[0]
    nothing = broker_plan(lived(replace(made, cores=0)), PlanOptions(spare_brokers=0))
    assert nothing.peak == 2
    assert nothing.binding == "what there is now"


# --- bookies


def test_disks_hold_what_comes_in_for_as_long_as_it_is_kept() -> None:
    made = replace(SMALL, daily=0.0, weekend=1.0, noise=0.0)
    storage = StoragePolicies(retention=Retention(seconds=86_400.0, bytes_per_topic=None), write_quorum=3)
    options = PlanOptions(
        storage=storage, disk_overhead_percent=0, disk_target_percent=50, spare_bookies=0, bookie_disk_gib=50
    )
    found = bookie_plan(lived(made), options)
    day_bytes = 4 * 1_000 * 1_000 * 86_400
    assert found.stored_bytes == pytest.approx(3 * day_bytes, rel=0.01)
    assert found.disk_bytes == pytest.approx(6 * day_bytes, rel=0.01)
    assert found.for_disks == -(-6 * day_bytes // (50 * GIB))
    assert found.for_writes == 1
    assert found.recommended == found.for_disks
    assert found.disk_gib == 50
    wide = bookie_plan(lived(made), replace(options, bookie_disk_gib=100_000.0, spare_bookies=1))
    assert (wide.for_disks, wide.recommended) == (1, 4)
    assert 2 * day_bytes < wide.disk_gib * GIB < 2.1 * day_bytes
    (namespace,) = found.namespaces
    assert namespace.ingress_bytes_per_second == pytest.approx(4_000_000, rel=0.01)
    older = replace(storage, retentions={"public/default": Retention(seconds=60 * 86_400.0, bytes_per_topic=None)})
    assert bookie_plan(lived(made), replace(options, storage=older)).stored_bytes == pytest.approx(
        180 * day_bytes, rel=0.01
    )


def test_sizes_bound_what_is_kept_and_endless_retention_is_told() -> None:
    storage = StoragePolicies(
        retention=Retention(seconds=None, bytes_per_topic=None),
        write_quorum=2,
        retentions={"shop/orders": Retention(seconds=None, bytes_per_topic=100.0 * MIB)},
    )
    found = bookie_plan(lived(EXAMPLE), PlanOptions(storage=storage))
    by_name = {one.namespace: one for one in found.namespaces}
    assert by_name["shop/orders"].stored_bytes == 2 * 10 * 100 * MIB
    assert not by_name["shop/orders"].endless
    assert by_name["shop/clicks"].endless
    assert found.growth_bytes_per_day > 0
    assert "GiB a day" in found.notes[1]


def test_writes_may_need_more_bookies_than_disks() -> None:
    found = bookie_plan(lived(SMALL), PlanOptions(bookie_write_mib=2, bookie_disk_gib=100_000))
    assert found.for_disks == 1
    assert found.for_writes > 4
    assert found.recommended == found.for_writes + 1


# --- all together


class FakeAdmin:
    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    def get(self, path: str) -> Any:
        if isinstance(self.answers.get(path), Exception):
            raise self.answers[path]
        return self.answers.get(path)


def test_the_cluster_is_asked_for_its_settings(example: LoadHistory) -> None:
    admin = FakeAdmin(
        {
            "brokers/configuration/runtime": {
                "defaultRetentionTimeInMinutes": "60",
                "defaultRetentionSizeInMB": "-1",
                "managedLedgerDefaultWriteQuorum": "3",
                "loadBalancerNamespaceBundleMaxMsgRate": "20000",
                "loadBalancerNamespaceBundleMaxTopics": "odd",
            },
            "namespaces/shop/orders/retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10},
            "namespaces/shop/orders/persistence": {"bookkeeperWriteQuorum": 5},
            f"namespaces/shop/orders/{QUARTERS[0]}/topicHashPositions": ClusterUnreachable("no answer"),
        }
    )
    found = ask_and_plan(example, PlanOptions(), admin)
    storage = found.options.storage
    assert storage.retention_of("public/default") == Retention(seconds=3600.0, bytes_per_topic=None)
    assert storage.retention_of("shop/orders") == Retention(seconds=None, bytes_per_topic=10 * MIB)
    assert (storage.write_quorum_of("shop/orders"), storage.write_quorum_of("shop/clicks")) == (5, 3)
    assert found.options.split == SplitSettings(bundle_msg_rate_max=20_000)
    assert "is not known: no answer" in found.notes[0]
    for error in (ClusterUnreachable("x"), AccessRefused("x")):
        refused = ask_and_plan(example, PlanOptions(), FakeAdmin({"brokers/configuration/runtime": error}))
        assert refused.options == PlanOptions()
        assert refused.notes[0].endswith("those of the options: x")


@pytest.mark.slow
async def test_a_brokers_admin_api_answers() -> None:
    async with MemoryBroker() as broker:
        topic = TopicName.parse("persistent://public/default/a")
        await broker.service.topic(topic, create=True)
        bundle = await broker.running.context.bundles.bundle_of(topic)
        options = ConnectionOptions(service_url="pulsar://x:1", admin_url=f"http://127.0.0.1:1,{broker.admin_url[7:]}")

        def ask() -> tuple[list[int], Any, Any, Any]:
            with HttpAdmin(options) as admin:
                with pytest.raises(AccessRefused, match=r"refuses \(4\d\d\)"):
                    admin.get("namespaces/public/default/nosuch")
                return (
                    topic_positions(admin, BundleName.parse(str(bundle))),
                    admin.get("namespaces/public/default/retention"),
                    admin.get("brokers/configuration/runtime"),
                    admin.get("namespaces/public/nowhere/retention"),
                )

        positions, retention, settings, nothing = await asyncio.to_thread(ask)
        assert positions == [topic.bundle_hash()]
        assert (retention, nothing) == (None, None)
        assert int(settings["loadBalancerNamespaceBundleMaxTopics"]) == 1_000


def test_the_example_is_planned(plan: LoadPlan) -> None:
    by_bundle = {one.bundle: one for one in plan.splits}
    assert by_bundle[f"shop/orders/{QUARTERS[0]}"].parts == 2
    assert by_bundle[f"shop/clicks/{QUARTERS[0]}"].parts == 1
    assert plan.brokers.resources[0].forecast.method is Method.WEEKS
    found = document(plan)
    assert json.loads(json.dumps(found)) == found
    assert found["history"]["from"] == "2024-10-04T00:00:00+00:00"
    assert len(found["brokers"]["neededByHour"]) == HOURS_PER_WEEK


def test_the_suggestion_is_a_resource_of_the_operator(plan: LoadPlan) -> None:
    suggested = cluster_resource(plan)
    assert yaml.safe_load(yaml_of(suggested)) == suggested
    spec = msgspec.convert(suggested["spec"], PulsarClusterSpec)
    assert spec.bookkeeper.replicas == plan.bookies.recommended
    steady = replace(plan, brokers=replace(plan.brokers, autoscaling=(4, 4), recommended=4))
    assert cluster_resource(steady)["spec"]["broker"] == {"replicas": 4}


def test_the_report_says_it_all(plan: LoadPlan) -> None:
    console = Console(file=StringIO(), width=160)
    show(plan, console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert f"Brokers: {plan.brokers.recommended} (3 now)" in text
    assert "pulsar-admin namespaces split-bundle shop/orders" in text
    assert "bookkeeper:" in text
    assert "Sat" in text


def test_a_young_history_is_planned_by_its_peak_and_said_so() -> None:
    short = make_plan(lived(replace(SMALL, days=1)), PlanOptions())
    assert short.notes[-1].startswith("only 24 hours of history")
    holes = make_plan(lived(replace(SMALL, missing=frozenset({5, 6}))), PlanOptions())
    assert holes.notes[-1].startswith("2 hours within the history are missing")
    assert holes.history.hours[0] == FIRST_HOUR


# --- the command


@pytest.fixture
def lived_history(monkeypatch: pytest.MonkeyPatch, example: LoadHistory) -> None:
    def read_history(choices: ConnectionChoices, topic: str) -> LoadHistory:
        assert topic == "persistent://pulsar/system/load-history"
        assert choices.options() == {"service.url": "pulsar://x:6650", "readMode": "brokers"}
        return example

    monkeypatch.setattr(load_planning, "read_history", read_history)


ARGUMENTS = ["--service-url", "pulsar://x:6650", "--option", "readMode=brokers"]


@pytest.mark.slow
@pytest.mark.usefixtures("lived_history")
def test_the_command_writes_a_plan_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = CliRunner().invoke(load_planning.app, [*ARGUMENTS, "--output", str(tmp_path / "plan")])
    assert done.exit_code == 0, done.output
    written = sorted(path.name for path in (tmp_path / "plan").iterdir())
    assert written == [
        "brokers-cpu.png",
        "brokers-needed.png",
        "brokers-network-in.png",
        "brokers-network-out.png",
        "bundles.png",
        "ingress.png",
        "plan.json",
    ]
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["brokers"]["now"] == 3


@pytest.mark.usefixtures("lived_history")
def test_without_matplotlib_all_but_the_pictures_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = CliRunner().invoke(load_planning.app, [*ARGUMENTS, "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "pip install 'magnetar-spark[plots]'" in " ".join(done.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--service-url", "http://x"], "BadOption: option service.url"),
        (["--service-url", "pulsar://x:6650", "--option", "readMode"], "name=value is accepted"),
        (["--service-url", "pulsar://x:6650", "--token-file", "/nowhere/token"], "--token-file /nowhere/token"),
    ],
)
def test_what_cannot_be_done_ends_with_a_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(load_planning.app, [*arguments, "--output", str(tmp_path)])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_errors_of_spark_end_with_a_line_and_bugs_with_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    errors = pytest.importorskip("pyspark.errors")
    with pytest.raises(typer.Exit), job_errors():
        raise errors.AnalysisException("no [topic] there\n\nJVM stacktrace:\nmuch")
    assert capsys.readouterr().err == "AnalysisException: no [topic] there\n"
    with pytest.raises(ValueError, match="a bug"), job_errors():
        raise ValueError("a bug")
