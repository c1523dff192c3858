"""Scans of a topic from Spark, side by side: `python -m bench.spark.run [--quick] [--gigabytes N] [--only NAME]`.

Our data source past the brokers and through them, StreamNative's JVM connector, the same rows as Parquet, and `cat` of
the bookies' files: in turns, in one run, with nothing of the files in memory at the beginning of a scan. Then a live
producer, alone and beside a scan. Tables go to the terminal, to bench/results as JSON and into docs/spark-benchmarks.md
(`--no-page`: not there).

An interrupted run that is started again with the same options goes on with the first table that it has not finished.
Everything else that it leaves is gone when it ends. The first run fetches a PySpark and the connector.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bench import page, report
from bench.report import Results
from bench.spark import beside, clusters, scans
from bench.spark.filling import Rows
from bench.spark.kept import Kept
from bench.spark.scans import SHAPES, Bench, Sample, Shape
from bench.spark.sessions import IN_THE_BACKGROUND, JVM_CONNECTOR, JVM_PYSPARK, Session, jvm_kind, our_kind

PREFIX = "magnetar-bench-spark-"
BESIDE = "live-producer"
QUIET_LOAD = 2.5
WARM_SHARE = 0.04
COPIES_ON_DISK = 2.8
"""The topic itself, what bookies have not thrown away of their journals, and both forms of Parquet."""


class NoRoom(Exception):
    """The disk is too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    gigabytes: float
    rounds: int
    window_s: float
    windows: int
    cores: int
    room_gigabytes: float


class Display:
    """A bar, what is being done, and a line for each figure."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, title: str, steps: int) -> None:
        """A table of so many steps."""
        self._progress.reset(self._task, total=steps, description=title)
        self._progress.console.print(f"[bold]{title}[/]")

    def doing(self, text: str) -> None:
        """What comes next."""
        self._progress.update(self._task, description=text)

    def done(self, text: str) -> None:
        """A step, and what came of it."""
        self._progress.advance(self._task)
        self._progress.console.print(f"  {text}", highlight=False)

    def told(self, text: str) -> None:
        """Something that is no step."""
        self.doing(text)
        self._progress.console.print(f"  {text}", highlight=False)


@contextlib.contextmanager
def folder_for(name: str) -> Iterator[Path]:
    """Gone afterwards, and so are those of earlier runs that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_room(plan: Plan, rows: Rows) -> None:
    """Raises `NoRoom`."""
    needed = COPIES_ON_DISK * rows.count * rows.size_bytes / 1e9
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    if free - needed < plan.room_gigabytes:
        raise NoRoom(
            f"{needed:.0f} GB are needed below {tempfile.gettempdir()}, {free:.0f} GB are free, and "
            f"{plan.room_gigabytes:.0f} GB are to stay free: --gigabytes or --room-gigabytes"
        )


@contextlib.contextmanager
def prepared(plan: Plan, shape: Shape, rows: Rows, display: Display) -> Iterator[Bench]:
    """A cluster with the topic and a small one like it, Parquet files of both, warm sessions."""
    check_room(plan, rows)
    warm = dataclasses.replace(rows, count=max(1, round(rows.count * WARM_SHARE / rows.per_batch)) * rows.per_batch)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_for(shape.name))
        display.doing("cluster starts")
        cluster = stack.enter_context(clusters.running(folder / "cluster"))
        for name, some in (("warm", warm), (shape.name, rows)):
            cluster.fill(name, some, filling(display, name, some.count))
        display.told(f"{rows.count} rows are stored; the cluster is started again")
        cluster.restart()
        display.doing("Sparks start")
        ours = stack.enter_context(Session(our_kind(plan.cores), folder / "spark-ours"))
        jvm = stack.enter_context(Session(jvm_kind(plan.cores), folder / "spark-jvm"))
        for session in (ours, jvm):
            session.wait_until_ready()
        bench = Bench(cluster=cluster, ours=ours, jvm=jvm, folder=folder)
        scans.warm_up(bench, "warm", display.doing)
        for note in scans.write_parquet(bench, shape.name):
            display.told(note)
        yield bench


def filling(display: Display, name: str, count: int) -> Callable[[int], None]:
    """Says how far the filling is."""
    stored = 0

    def told(more: int) -> None:
        nonlocal stored
        stored += more
        display.doing(f"filling {name}: {stored / count:.0%}")

    return told


def measure_scans(plan: Plan, shape: Shape, rows: Rows, bench: Bench, display: Display) -> Results:
    """The median of all rounds."""
    rounds: list[list[Sample]] = [[] for _ in range(plan.rounds)]
    steps = scans.steps(plan.rounds)
    for number, (query, side) in enumerate(steps):
        display.doing(f"round {number * plan.rounds // len(steps) + 1}: {query}, {side}")
        sample = scans.scan(bench, shape.name, rows.count, side, query)
        rounds[number * plan.rounds // len(steps)].append(sample)
        rate = rows.count * rows.size_bytes / scans.MB / sample.seconds
        servers = f"brokers {sample.brokers_cpu_seconds:.1f} s, bookies {sample.bookies_cpu_seconds:.1f} s"
        display.done(f"{query}, {side}: {rate:.0f} MB/s, CPU {sample.spark_cpu_seconds:.1f} s, {servers}")
    return report.median([scans.figures(samples, rows) for samples in rounds])


def measure_beside(plan: Plan, shape: Shape, rows: Rows, bench: Bench, display: Display) -> Results:
    """The median of all rounds, with a session that gets only what is left of the processors."""
    kind = our_kind(1, IN_THE_BACKGROUND)
    with Session(kind, bench.folder / "spark-background") as background:
        background.wait_until_ready()
        with_background = dataclasses.replace(bench, ours=background)
        for side in (scans.PARQUET, scans.DIRECT, scans.BROKERS):
            display.doing(f"warming up in the background: {side}")
            background.ask(scans.told_of(bench, "warm", side, "value"))
        found = []
        for _ in range(plan.windows):
            found.append(beside.one_round(with_background, shape.name, rows, plan.window_s, display.doing))
            display.done("; ".join(f"{name}: p99 {each['p99']:.2f} ms" for name, each in found[-1].items()))
    return report.median(found)


def measure_shape(plan: Plan, shape: Shape, kept: Kept, wanted: set[str], display: Display) -> None:
    """The tables of one topic that are wanted and not known yet."""
    rows = shape.rows(plan.gigabytes)
    with_beside = shape is SHAPES[0] and BESIDE in wanted and kept.get(BESIDE) is None
    with_scans = shape.name in wanted and kept.get(shape.name) is None
    if not with_beside and not with_scans:
        return
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        display.told(f"[red]not a quiet machine:[/] load average {load:.1f}, the figures say little")
    steps = len(scans.steps(plan.rounds)) * with_scans + plan.windows * with_beside
    display.begin(shape.title, steps)
    circumstances: dict[str, object] = {
        "GB of values": f"{rows.count * rows.size_bytes / 1e9:.2f}",
        "rows": f"{rows.count:,}".replace(",", "\u202f"),
        "rounds": plan.rounds,
        "page cache": "dropped before each scan" if clusters.drop_page_cache() else "as it was",
        "cores": os.cpu_count(),
        "load average before": f"{load:.1f}",
    }
    with prepared(plan, shape, rows, display) as bench:
        circumstances["Spark"] = f"{bench.ours.version}, with {JVM_CONNECTOR.rpartition(':')[2]} {JVM_PYSPARK}"
        if with_scans:
            kept.put(shape.name, measure_scans(plan, shape, rows, bench, display), circumstances)
        if with_beside:
            windows = {"windows": plan.windows, "seconds a window": f"{plan.window_s:.0f}"}
            results = measure_beside(plan, shape, rows, bench, display)
            kept.put(BESIDE, results, circumstances | windows)


def write_pages(kept: Kept, wanted: set[str], console: Console, *, in_page: bool) -> None:
    """All tables that are known."""
    for shape in SHAPES:
        found = kept.get(shape.name)
        if shape.name in wanted and found:
            results, taken = found
            figures = page.Figures(
                name=shape.name, title=shape.title, results=results, metrics=scans.metrics(), ours=scans.DIRECT,
                reference=scans.JVM,
            )  # fmt: skip
            page.SPARK.write(figures, taken, console, in_page=in_page)
    found = kept.get(BESIDE)
    if BESIDE in wanted and found:
        results, taken = found
        figures = page.Figures(
            name=BESIDE, title="a live producer", results=results, metrics=beside.METRICS, ours=beside.DIRECT,
            reference=beside.ALONE,
        )  # fmt: skip
        page.SPARK.write(figures, taken, console, in_page=in_page)


def _leave(number: int, frame: FrameType | None) -> None:
    """SIGTERM as an exception, so that what runs is ended and what is on disk goes."""
    raise SystemExit(128 + number)


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [shape.name for shape in SHAPES] + [BESIDE]
    parser.add_argument("--quick", action="store_true", help="0.3 GB, one round, 8 s windows")
    parser.add_argument("--gigabytes", type=float, help="of values in the largest topic; the others have a tenth")
    parser.add_argument("--rounds", type=int, help="take the median of so many")
    parser.add_argument("--only", choices=names, action="append", help="may repeat; all if left out")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="of each Spark: local[N]")
    parser.add_argument("--room-gigabytes", type=float, default=25.0, help="what is to stay free on the disk")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run has found")
    parser.add_argument("--no-page", action="store_true", help="leave the documentation as it is")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    quick = arguments.quick
    plan = Plan(
        gigabytes=arguments.gigabytes or (0.3 if quick else 5.0),
        rounds=arguments.rounds or (1 if quick else 2),
        window_s=8.0 if quick else 12.0,
        windows=1 if quick else 3,
        cores=arguments.cores,
        room_gigabytes=arguments.room_gigabytes,
    )
    kept = Kept({"gigabytes": plan.gigabytes, "rounds": plan.rounds, "cores": plan.cores, "quick": quick})
    if arguments.fresh:
        kept.forget()
    wanted = set(arguments.only or names)
    console = Console(width=180)
    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        display = Display(progress)
        for shape in SHAPES:
            measure_shape(plan, shape, kept, wanted, display)
    write_pages(kept, wanted, console, in_page=not arguments.no_page)
    kept.forget()


if __name__ == "__main__":
    main()
