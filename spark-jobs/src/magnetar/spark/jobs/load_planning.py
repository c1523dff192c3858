"""Load planning: what the coming week needs, by the load history that the leading broker publishes.

    python -m magnetar.spark.jobs.load_planning --service-url pulsar://host:6650 --admin-url http://host:8080 \\
        --output plan

prints a report and writes `plan/plan.json` and pictures: which bundles should be split and where, how many brokers each
hour needs, and how many bookies with which disks."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer
from magnetar.spark.errors import BadOption, TopicMissing
from magnetar.spark.jobs.job import (
    ConnectionChoices,
    job_app,
    job_command,
    job_console,
    reader,
    spark_session,
)
from magnetar.spark.jobs.load.aggregation import WHO_WRITES, NoLoadHistory, aggregate
from magnetar.spark.jobs.load.capacity import PlanOptions
from magnetar.spark.jobs.load.model import LoadHistory
from magnetar.spark.jobs.load.plan import LoadPlan, ask_and_plan, document
from magnetar.spark.jobs.load.plots import NoPlots, draw
from magnetar.spark.jobs.load.policies import HttpAdmin, Retention, StoragePolicies
from magnetar.spark.jobs.load.report import show
from magnetar.spark.options.connection import ConnectionOptions
from rich.console import Console
from rich.markup import escape

HISTORY_TOPIC: Final = "persistent://pulsar/system/load-history"
"""Where brokers publish it (`magnetar.broker.policies.system_topics`)."""

_DEFAULTS: Final = PlanOptions()

FORECAST_PANEL: Final = "Forecast"
BROKERS_PANEL: Final = "Brokers"
BOOKIES_PANEL: Final = "Bookies"
"""Where help has the options about them."""

app = job_app()


def read_history(choices: ConnectionChoices, topic: str) -> LoadHistory:
    """Everything that the topic holds. `NoLoadHistory`, `BadOption`."""
    from pyspark.errors import AnalysisException

    spark = spark_session("load-planning")
    try:
        found = reader(spark, choices).option("topic", topic).load()
    except AnalysisException as error:
        # Of an error in a Python source Spark hands on the text alone.
        if TopicMissing.__name__ in str(error):
            raise NoLoadHistory(f"there is no topic {topic}: {WHO_WRITES}") from None
        raise
    return aggregate(found)


def write_plan(plan: LoadPlan, folder: Path, *, plots: bool, console: Console) -> None:
    """The report on the console, the rest into a folder, which is made. `BadOption`, `NoPlots`."""
    show(plan, console)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(document(plan), indent=1), encoding="utf-8")
    except OSError as error:
        raise BadOption(f"--output {folder} cannot be written: {error.strerror}") from None
    written = [folder / "plan.json"]
    if plots:
        try:
            written += draw(plan, folder)
        except NoPlots as error:
            console.print(f"[yellow]no pictures[/yellow]: {escape(str(error))}", highlight=False)
    console.print("\nwritten: " + ", ".join(map(str, written)), highlight=False, soft_wrap=True)


def admin_of(connection: ConnectionOptions) -> AbstractContextManager[HttpAdmin | None]:
    """The admin API, where it was said where that is."""
    return HttpAdmin(connection) if connection.admin_url else nullcontext()


Output = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for plan.json and the pictures.")]
Topic = Annotated[str, typer.Option(metavar="NAME", help="The topic of the load history.")]
TargetPercent = Annotated[
    float,
    typer.Option(
        min=5,
        max=100,
        metavar="PERCENT",
        help="How much of its limits a broker may use in its busiest hour.",
        rich_help_panel=BROKERS_PANEL,
    ),
]
SpareBrokers = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="NUMBER",
        help="Brokers beyond what is needed, so that some may be away.",
        rich_help_panel=BROKERS_PANEL,
    ),
]
BrokersMin = Annotated[
    int, typer.Option(min=1, metavar="NUMBER", help="Never fewer brokers.", rich_help_panel=BROKERS_PANEL)
]
IntervalPercent = Annotated[
    float,
    typer.Option(
        min=50,
        max=99,
        metavar="PERCENT",
        help="How many hours should end up inside of the intervals.",
        rich_help_panel=FORECAST_PANEL,
    ),
]
GrowthPercent = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help="Growth in a week, for who knows better than the history: 10, or -5.",
        rich_help_panel=FORECAST_PANEL,
    ),
]
BookieDisk = Annotated[
    float,
    typer.Option(min=1, metavar="GIB", help="How large a bookie's ledger disk may be.", rich_help_panel=BOOKIES_PANEL),
]
BookieWrite = Annotated[
    float,
    typer.Option(min=0.1, metavar="MIB", help="What a bookie takes in a second.", rich_help_panel=BOOKIES_PANEL),
]
DiskTarget = Annotated[
    float,
    typer.Option(min=5, max=94, metavar="PERCENT", help="How full disks may become.", rich_help_panel=BOOKIES_PANEL),
]
DiskOverhead = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="PERCENT",
        help="Room for what is deleted and not collected yet.",
        rich_help_panel=BOOKIES_PANEL,
    ),
]
SpareBookies = Annotated[
    int,
    typer.Option(min=0, metavar="NUMBER", help="Bookies beyond what is needed.", rich_help_panel=BOOKIES_PANEL),
]
BookiesMin = Annotated[
    int, typer.Option(min=1, metavar="NUMBER", help="Never fewer bookies.", rich_help_panel=BOOKIES_PANEL)
]
RetentionHours = Annotated[
    float,
    typer.Option(
        min=-1,
        metavar="HOURS",
        help="How long messages are kept where the admin API does not tell; -1: for ever.",
        rich_help_panel=BOOKIES_PANEL,
    ),
]
WriteQuorum = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Copies of each entry where the admin API does not tell.",
        rich_help_panel=BOOKIES_PANEL,
    ),
]
Plots = Annotated[bool, typer.Option(help="Whether pictures are drawn (needs matplotlib).")]


@job_command(app)
def main(
    choices: ConnectionChoices,
    output: Output,
    topic: Topic = HISTORY_TOPIC,
    target_percent: TargetPercent = _DEFAULTS.target_percent,
    spare_brokers: SpareBrokers = _DEFAULTS.spare_brokers,
    brokers_min: BrokersMin = _DEFAULTS.brokers_min,
    interval_percent: IntervalPercent = _DEFAULTS.interval_percent,
    growth_percent: GrowthPercent = None,
    bookie_disk_gib: BookieDisk = _DEFAULTS.bookie_disk_gib,
    bookie_write_mib: BookieWrite = _DEFAULTS.bookie_write_mib,
    disk_target_percent: DiskTarget = _DEFAULTS.disk_target_percent,
    disk_overhead_percent: DiskOverhead = _DEFAULTS.disk_overhead_percent,
    spare_bookies: SpareBookies = _DEFAULTS.spare_bookies,
    bookies_min: BookiesMin = _DEFAULTS.bookies_min,
    retention_hours: RetentionHours = 24.0,
    write_quorum: WriteQuorum = _DEFAULTS.storage.write_quorum,
    plots: Plots = True,
) -> None:
    """Tell what the coming week needs: splits of bundles, brokers by the hour, bookies and their disks.

    Takes the load history that the leading broker writes.

    Exit code: 0 planned, 1 failed, 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark load-planning --output plan
      magnetar-spark load-planning --output plan \\\\
        --growth-percent 20 --bookie-disk-gib 500 --no-plots
    """
    options = PlanOptions(
        target_percent=target_percent,
        spare_brokers=spare_brokers,
        brokers_min=brokers_min,
        interval_percent=interval_percent,
        growth_percent=growth_percent,
        bookie_disk_gib=bookie_disk_gib,
        bookie_write_mib=bookie_write_mib,
        disk_target_percent=disk_target_percent,
        disk_overhead_percent=disk_overhead_percent,
        spare_bookies=spare_bookies,
        bookies_min=bookies_min,
        storage=StoragePolicies(retention=_retention(retention_hours), write_quorum=write_quorum),
    )
    with admin_of(choices.connection()) as admin:
        plan = ask_and_plan(read_history(choices, topic), options, admin)
        write_plan(plan, output, plots=plots, console=job_console())


def _retention(hours: float) -> Retention:
    return Retention(seconds=None if hours < 0 else hours * 3600, bytes_per_topic=None)


if __name__ == "__main__":
    app()
