"""Load planning: what the coming week needs, by the load history that the leading broker publishes.

    python -m magnetar.spark.jobs.load_planning --service-url pulsar://host:6650 --admin-url http://host:8080 \\
        --output plan

prints a report and writes `plan/plan.json` and pictures: which bundles should be split and where, how many brokers each
hour needs, and how many bookies with which disks."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

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


def _of(
    panel: str, explained: str, metavar: str = "NUMBER", *, min: float | None = None, max: float | None = None
) -> Any:
    return typer.Option(metavar=metavar, help=explained, min=min, max=max, rich_help_panel=panel)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """What is planned by which choices: those of `PlanOptions`, and where it comes from and goes."""

    choices: ConnectionChoices
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for plan.json and the pictures.")]
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic of the load history.")] = HISTORY_TOPIC
    target_percent: Annotated[
        float,
        _of(BROKERS_PANEL, "How much of its limits a broker may use in its busiest hour.", "PERCENT", min=5, max=100),
    ] = _DEFAULTS.target_percent
    spare_brokers: Annotated[
        int, _of(BROKERS_PANEL, "Brokers beyond what is needed, so that some may be away.", min=0)
    ] = _DEFAULTS.spare_brokers
    brokers_min: Annotated[int, _of(BROKERS_PANEL, "Never fewer brokers.", min=1)] = _DEFAULTS.brokers_min
    interval_percent: Annotated[
        float, _of(FORECAST_PANEL, "How many hours should end up inside of the intervals.", "PERCENT", min=50, max=99)
    ] = _DEFAULTS.interval_percent
    growth_percent: Annotated[
        float | None,
        _of(FORECAST_PANEL, "Growth in a week, for who knows better than the history: 10, or -5.", "PERCENT"),
    ] = None
    bookie_disk_gib: Annotated[float, _of(BOOKIES_PANEL, "How large a bookie's ledger disk may be.", "GIB", min=1)] = (
        _DEFAULTS.bookie_disk_gib
    )
    bookie_write_mib: Annotated[float, _of(BOOKIES_PANEL, "What a bookie takes in a second.", "MIB", min=0.1)] = (
        _DEFAULTS.bookie_write_mib
    )
    disk_target_percent: Annotated[
        float, _of(BOOKIES_PANEL, "How full disks may become.", "PERCENT", min=5, max=94)
    ] = _DEFAULTS.disk_target_percent
    disk_overhead_percent: Annotated[
        float, _of(BOOKIES_PANEL, "Room for what is deleted and not collected yet.", "PERCENT", min=0)
    ] = _DEFAULTS.disk_overhead_percent
    spare_bookies: Annotated[int, _of(BOOKIES_PANEL, "Bookies beyond what is needed.", min=0)] = _DEFAULTS.spare_bookies
    bookies_min: Annotated[int, _of(BOOKIES_PANEL, "Never fewer bookies.", min=1)] = _DEFAULTS.bookies_min
    retention_hours: Annotated[
        float,
        _of(
            BOOKIES_PANEL,
            "How long messages are kept where the admin API does not tell; -1: for ever.",
            "HOURS",
            min=-1,
        ),
    ] = 24.0
    write_quorum: Annotated[
        int, _of(BOOKIES_PANEL, "Copies of each entry where the admin API does not tell.", min=1)
    ] = _DEFAULTS.storage.write_quorum
    plots: Annotated[bool, typer.Option(help="Whether pictures are drawn (needs matplotlib).")] = True

    def plan_options(self) -> PlanOptions:
        """What is planned by."""
        chosen = {one.name: getattr(self, one.name) for one in fields(PlanOptions) if hasattr(self, one.name)}
        seconds = None if self.retention_hours < 0 else self.retention_hours * 3600
        retention = Retention(seconds=seconds, bytes_per_topic=None)
        return PlanOptions(**chosen, storage=StoragePolicies(retention=retention, write_quorum=self.write_quorum))


@job_command(app)
def main(job: LoadJob) -> None:
    """Tell what the coming week needs: splits of bundles, brokers by the hour, bookies and their disks.

    Takes the load history that the leading broker writes.

    Exit code: 0 planned, 1 failed, 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark load-planning --output plan
      magnetar-spark load-planning --output plan \\\\
        --growth-percent 20 --bookie-disk-gib 500 --no-plots
    """
    with admin_of(job.choices.connection()) as admin:
        plan = ask_and_plan(read_history(job.choices, job.topic), job.plan_options(), admin)
        write_plan(plan, job.output, plots=job.plots, console=job_console())


if __name__ == "__main__":
    app()
