"""Load reports: what stands in them, when they are renewed, and where their numbers come from."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from magnetar.broker.bundles.statistics import BundleStatistics, BundleStats
from magnetar.broker.load.broker_report import LOAD_MANAGER_CLASS, BrokerReport
from magnetar.broker.load.host_usage import HostUsage, HostUsageMeter
from magnetar.broker.load.reporter import Reporter, report_due
from magnetar.broker.peers.addresses import AdvertisedListener, BrokerAddresses
from magnetar.broker.settings.load import LoadSettings, switched
from magnetar.core.bundle import BundleName
from magnetar.core.errors import PeerError, SettingError

from broker.tests.subscription_stage import Timers

BUNDLE = "t/n/0x00000000_0x80000000"
OTHER = "t/n/0x80000000_0xffffffff"

# What Apache Pulsar 4.0.8 writes (LocalBrokerData through JSONMetadataSerdeSimpleType), its times set to 5.
APACHE = (
    '{"webServiceUrl":"http://b:8080","webServiceUrlTls":"https://b:8443","pulsarServiceUrl":"pulsar://b:6650",'
    '"pulsarServiceUrlTls":"pulsar+ssl://b:6651","persistentTopicsEnabled":true,"nonPersistentTopicsEnabled":true,'
    '"cpu":{"usage":50.0,"limit":200.0},"memory":{"usage":0.0,"limit":0.0},"directMemory":{"usage":0.0,"limit":0.0},'
    '"bandwidthIn":{"usage":0.0,"limit":0.0},"bandwidthOut":{"usage":0.0,"limit":0.0},"msgThroughputIn":0.0,'
    '"msgThroughputOut":0.0,"msgRateIn":1.5,"msgRateOut":0.0,"lastUpdate":5,"lastStats":{"t/n/0x00000000_0x80000000":'
    '{"msgRateIn":1.5,"msgThroughputIn":0.0,"msgRateOut":0.0,"msgThroughputOut":0.0,"consumerCount":0,'
    '"producerCount":0,"topics":3,"cacheSize":0}},"numTopics":3,"numBundles":1,"numConsumers":0,"numProducers":0,'
    '"bundles":["t/n/0x00000000_0x80000000"],"lastBundleGains":["t/n/0x00000000_0x80000000"],"lastBundleLosses":[],'
    '"brokerVersionString":"4.0.8","protocols":{},"advertisedListeners":{"ext":{"brokerServiceUrl":"pulsar://x:1"}},'
    '"loadManagerClassName":"org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl","startTimestamp":5,'
    '"maxResourceUsage":0.25,"loadReportType":"LocalBrokerData"}'
)


def addresses(broker_id: str = "b:8080") -> BrokerAddresses:
    return BrokerAddresses(
        broker_id=broker_id,
        service_url="pulsar://b:6650",
        service_url_tls="pulsar+ssl://b:6651",
        web_service_url="http://b:8080",
        web_service_url_tls="https://b:8443",
        listeners={"ext": AdvertisedListener(broker_service_url="pulsar://x:1")},
    )


def bundle_stats(rate: float = 1.5, topics: int = 3) -> BundleStats:
    stats = BundleStats()
    stats.msg_rate_in = rate
    stats.topics = topics
    return stats


def sample_report(**stats: BundleStats) -> BrokerReport:
    host = HostUsage()
    host.cpu.usage, host.cpu.limit = 50.0, 200.0
    return Reporter(addresses(), "4.0.8", 5).report(host, stats or {BUNDLE: bundle_stats()}, 5, draining=False)


def test_a_report_is_apaches_json_but_for_one_field_of_ours() -> None:
    document = json.loads(sample_report().encode())
    assert document.pop("magnetar") == {"draining": False}
    assert json.dumps(document, separators=(",", ":")) == APACHE


def test_apaches_report_is_read() -> None:
    report = BrokerReport.decode("b:8080", APACHE.encode())
    assert report.addresses == addresses()
    assert report.host.cpu.percent == 25.0
    assert report.host.memory.percent == 0.0
    assert report.stats[BUNDLE].topics == 3
    assert report.bundles == [BUNDLE]
    assert report.load_manager_class == LOAD_MANAGER_CLASS
    assert not report.ours
    assert BrokerReport.decode("b:8080", sample_report().encode()).ours


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"cpu":3}', b'{"lastStats":{"x":null}}'])
def test_what_is_no_report_is_refused(value: bytes) -> None:
    with pytest.raises(PeerError, match="the load report of x"):
        BrokerReport.decode("x", value)


def test_a_report_without_tls_addresses_leaves_them_out() -> None:
    plain = BrokerAddresses(
        broker_id="b", service_url="s", service_url_tls=None, web_service_url="w", web_service_url_tls=None
    )
    assert "pulsarServiceUrlTls" not in BrokerReport(plain).document()


def test_too_large_a_report_keeps_the_busiest_statistics_and_all_names() -> None:
    report = BrokerReport(addresses())
    for index in range(100):
        stats = bundle_stats()
        stats.throughput_in = float(index)
        report.stats[f"t/n{index}/0x00000000_0xffffffff"] = stats
    report.bundles = sorted(report.stats)
    value = report.encode(size_bytes_max=12_000)
    assert len(value) <= 12_000
    read = BrokerReport.decode("b", value)
    assert len(read.bundles) == 100
    assert 10 < len(read.stats) < 100
    assert min(stats.throughput_in for stats in read.stats.values()) == 100 - len(read.stats)


def test_when_a_report_is_due() -> None:
    settings = LoadSettings()
    before = sample_report()

    def due(now: BrokerReport, seconds: float) -> bool:
        return report_due(before, now, settings, seconds)

    assert not due(sample_report(), 10)
    assert due(sample_report(), 901)
    faster = sample_report(**{BUNDLE: bundle_stats(rate=1.7)})
    assert due(faster, 5)
    assert not due(faster, 4.9), "reports are five seconds apart"
    assert not due(sample_report(**{BUNDLE: bundle_stats(rate=1.6)}), 10), "less than ten percent"
    assert due(sample_report(**{OTHER: bundle_stats()}), 5), "another bundle"
    assert due(sample_report(**{BUNDLE: bundle_stats(topics=4)}), 5), "more topics"
    busier = sample_report()
    busier.host.cpu.usage = 71.0
    assert due(busier, 5)
    busier.host.cpu.usage = 69.0
    assert not due(busier, 5)


def test_a_report_tells_what_came_and_went() -> None:
    reporter = Reporter(addresses(), "", 0)
    reporter.written = reporter.report(HostUsage(), {BUNDLE: bundle_stats()}, 1, draining=False)
    report = reporter.report(HostUsage(), {OTHER: bundle_stats()}, 2, draining=False)
    assert report.bundle_gains == [OTHER]
    assert report.bundle_losses == [BUNDLE]


def test_dynamic_settings_switch_the_leader() -> None:
    settings = switched(
        LoadSettings(),
        {
            "loadBalancerEnabled": "false",
            "loadBalancerAutoBundleSplitEnabled": "nonsense",
            "magnetarLoadBalanceDriver": "control",
            "maxUnackedMessagesPerConsumer": "1",
        },
    )
    assert not settings.enabled
    assert settings.auto_split
    assert settings.driver == "control"
    assert switched(LoadSettings(), {"magnetarLoadBalanceDriver": "nobody"}).driver == "leader"
    with pytest.raises(SettingError, match="magnetarLoadBalanceDriver"):
        LoadSettings(driver="nobody")


# --- statistics


class FakeRates:
    def __init__(self, messages: float) -> None:
        self.message_rate_in = messages
        self.byte_rate_in = messages * 100


class FakeRate:
    def __init__(self, per_second: float) -> None:
        self.per_second = per_second


class FakeConsumerRates:
    def __init__(self, messages: float) -> None:
        self.messages_out = FakeRate(messages)
        self.bytes_out = FakeRate(messages * 100)


class FakeConsumer:
    def __init__(self, messages: float) -> None:
        self.rates = FakeConsumerRates(messages)


class FakeProducers:
    def __init__(self, *rates: float) -> None:
        self.by_name = {str(index): FakeRates(rate) for index, rate in enumerate(rates)}


class FakeSubscription:
    def __init__(self, *rates: float) -> None:
        self.consumers = [FakeConsumer(rate) for rate in rates]


class FakeTopic:
    def __init__(self, producers: FakeProducers, **subscriptions: FakeSubscription) -> None:
        self.producers = producers
        self.subscriptions = subscriptions


class FakeBundle:
    def __init__(self, *topics: FakeTopic) -> None:
        self.topics = {str(index): topic for index, topic in enumerate(topics)}


class TickingClock(Timers):
    """Time goes on with each look at it."""

    def __init__(self, tick_ms: float) -> None:
        super().__init__()
        self.tick_ms = tick_ms

    def monotonic_seconds(self) -> float:
        self.time_ms += self.tick_ms
        return super().monotonic_seconds()


async def test_bundles_sum_up_their_topics() -> None:
    busy = FakeBundle(
        FakeTopic(FakeProducers(1.0, 2.0), s=FakeSubscription(5.0), idle=FakeSubscription()),
        FakeTopic(FakeProducers(), s=FakeSubscription(1.0, 1.0)),
    )
    owned = {BundleName.parse(BUNDLE): busy, BundleName.parse(OTHER): FakeBundle()}
    sums = await BundleStatistics(lambda: owned, Timers()).collect()
    assert sums[BUNDLE].document() == {
        "msgRateIn": 3.0,
        "msgThroughputIn": 300.0,
        "msgRateOut": 7.0,
        "msgThroughputOut": 700.0,
        "consumerCount": 3,
        "producerCount": 2,
        "topics": 2,
        "cacheSize": 0,
    }
    assert sums[OTHER].topics == 0


async def test_many_topics_are_summed_up_in_slices_and_not_too_often() -> None:
    owned = {BundleName.parse(BUNDLE): FakeBundle(*(FakeTopic(FakeProducers()) for _ in range(640)))}
    clock = TickingClock(tick_ms=1.5)
    statistics = BundleStatistics(lambda: owned, clock)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    competing = asyncio.create_task(others())
    assert (await statistics.collect())[BUNDLE].topics == 640
    competing.cancel()
    assert turns >= 4
    owned[BundleName.parse(BUNDLE)].topics.clear()
    owned[BundleName.parse(OTHER)] = FakeBundle()
    sums = await statistics.collect()
    assert sums[BUNDLE].topics == 640, "the last sums, as new ones would cost too much so soon"
    assert sums[OTHER].topics == 0
    assert (await statistics.collect(at_once=True))[BUNDLE].topics == 0


# --- the host


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def put_network(root: Path, received: int, sent: int, speed: str = "1000") -> None:
    for name, kind in (("eth0", "1"), ("lo", "772"), ("down0", "1")):
        folder = f"sys/class/net/{name}"
        put(
            root,
            {
                f"{folder}/type": kind,
                f"{folder}/operstate": "down" if name == "down0" else "up",
                f"{folder}/speed": speed,
                f"{folder}/statistics/rx_bytes": str(received),
                f"{folder}/statistics/tx_bytes": str(sent),
            },
        )


def test_a_container_of_version_two(tmp_path: Path) -> None:
    clock = Timers()
    meter = HostUsageMeter(clock, root=tmp_path)
    cgroup = "sys/fs/cgroup"
    put(
        tmp_path,
        {
            f"{cgroup}/cpu.stat": "usage_usec 1000000\nuser_usec 1\n",
            f"{cgroup}/cpu.max": "150000 100000",
            f"{cgroup}/memory.current": str(300 << 20),
            f"{cgroup}/memory.max": str(1 << 30),
            f"{cgroup}/memory.stat": f"anon 1\ninactive_file {44 << 20}\n",
            "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n",
        },
    )
    put_network(tmp_path, 0, 0)
    first = meter.measure()
    assert first.cpu.usage == 0.0
    clock.advance(10_000)
    put(tmp_path, {f"{cgroup}/cpu.stat": "usage_usec 8500000\n"})
    put_network(tmp_path, 12_800_000, 1_280_000)
    usage = meter.measure()
    assert (usage.cpu.usage, usage.cpu.limit) == (75.0, 150.0)
    assert (usage.memory.usage, usage.memory.limit) == (256.0, 1024.0)
    assert usage.bandwidth_in.usage == 10_000.0
    assert usage.bandwidth_out.usage == 1_000.0
    assert usage.bandwidth_in.limit == 1000 * 1024
    assert max(usage.percents()) == 50.0


def test_a_container_of_version_one(tmp_path: Path) -> None:
    clock = Timers()
    cgroup = "sys/fs/cgroup"
    put(
        tmp_path,
        {
            f"{cgroup}/cpuacct/cpuacct.usage": "0",
            f"{cgroup}/cpu/cpu.cfs_quota_us": "50000",
            f"{cgroup}/cpu/cpu.cfs_period_us": "100000",
            f"{cgroup}/memory/memory.usage_in_bytes": str(100 << 20),
            f"{cgroup}/memory/memory.limit_in_bytes": str(200 << 20),
            f"{cgroup}/memory/memory.stat": f"total_inactive_file {50 << 20}\n",
            "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n",
        },
    )
    put_network(tmp_path, 0, 0, speed="-1")
    meter = HostUsageMeter(clock, nic_speed_gbps=2.5, root=tmp_path)
    meter.measure()
    clock.advance(1_000)
    put(tmp_path, {f"{cgroup}/cpuacct/cpuacct.usage": "250000000"})
    usage = meter.measure()
    assert (usage.cpu.usage, usage.cpu.limit) == (25.0, 50.0)
    assert usage.memory.percent == 25.0
    assert usage.bandwidth_out.limit == 2.5 * 1024 * 1024


CGROUP = "sys/fs/cgroup"


def put_processor(root: Path, *, container_seconds: float, process_seconds: float, maximum: str = "max 100000") -> None:
    """What a container and its one process have used; proc(5) counts in ticks."""
    ticks = round(process_seconds * os.sysconf("SC_CLK_TCK"))
    stat = f"7 (mag (net) ar) S 1 7 7 0 -1 4194560 1 0 0 0 {ticks - 10} 10 5 5 20 0 3 0 100"
    used = f"usage_usec {round(container_seconds * 1e6)}\n"
    put(root, {f"{CGROUP}/cpu.stat": used, f"{CGROUP}/cpu.max": maximum, "proc/self/stat": stat})


@pytest.mark.parametrize(
    ("processors", "maximum", "container_cores", "process_cores", "expected"),
    [
        pytest.param(16, "max 100000", 0.9, 0.9, (90.0, 100.0), id="16 cores, of which a broker can use one"),
        pytest.param(64, "max 100000", 0.9, 0.9, (90.0, 100.0), id="64 cores"),
        pytest.param(64, "400000 100000", 0.9, 0.9, (90.0, 100.0), id="a limit of four"),
        pytest.param(64, "50000 100000", 0.45, 0.45, (45.0, 50.0), id="a limit of half a core"),
        pytest.param(2, "max 100000", 0.1, 0.1, (10.0, 100.0), id="little to do"),
        pytest.param(16, "max 100000", 15.2, 0.3, (1520.0, 1600.0), id="others fill the host"),
        pytest.param(16, "200000 100000", 1.9, 0.9, (190.0, 200.0), id="a sidecar fills the pod"),
        pytest.param(16, "max 100000", 1.7, 1.7, (100.0, 100.0), id="other threads of the process"),
    ],
)
def test_a_broker_is_full_with_one_core_of_its_own(
    tmp_path: Path,
    processors: int,
    maximum: str,
    container_cores: float,
    process_cores: float,
    expected: tuple[float, float],
) -> None:
    """By all cores of the node 0.9 of 16 were 6 %, and nothing was ever scaled out or moved for it."""
    clock = Timers()
    meter = HostUsageMeter(clock, root=tmp_path, processors=processors)
    put_processor(tmp_path, container_seconds=100.0, process_seconds=100.0, maximum=maximum)
    meter.measure()
    clock.advance(60_000)
    used = (100.0 + 60 * container_cores, 100.0 + 60 * process_cores)
    put_processor(tmp_path, container_seconds=used[0], process_seconds=used[1], maximum=maximum)
    cpu = meter.measure().cpu
    assert (cpu.usage, cpu.limit) == pytest.approx(expected)


def test_averages_are_over_a_window_however_often_it_is_asked(tmp_path: Path) -> None:
    clock = Timers()
    meter = HostUsageMeter(clock, root=tmp_path, window_seconds=60, processors=16)
    busy, seen = 0.0, []
    for second in range(0, 240, 15):
        put_processor(tmp_path, container_seconds=busy, process_seconds=busy)
        seen.append(round(meter.measure().cpu.percent))
        clock.advance(15_000)
        busy += 15.0 if second >= 120 else 0.0
    assert seen == [0] * 9 + [25, 50, 75, 100, 100, 100, 100]


def test_a_host_without_limits(tmp_path: Path) -> None:
    clock = Timers()
    put(
        tmp_path,
        {
            "proc/stat": "cpu  0 0 0 100 50 0 0\ncpu0 1 1 1\n",
            "proc/meminfo": f"MemTotal: {4 << 20} kB\nMemAvailable: {3 << 20} kB\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    meter = HostUsageMeter(clock, root=tmp_path)
    meter.measure()
    clock.advance(1_000)
    put(tmp_path, {"proc/stat": "cpu  50 0 0 100 90 0 0\n"})
    usage = meter.measure()
    assert usage.cpu.usage == pytest.approx(50.0)
    assert usage.cpu.limit >= 100.0
    assert usage.memory.percent == 25.0
    assert usage.bandwidth_in.percent == 0.0


def test_nothing_is_known_without_such_files(tmp_path: Path) -> None:
    usage = HostUsageMeter(Timers(), root=tmp_path).measure()
    assert usage.percents() == [0.0] * 5
