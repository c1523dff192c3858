"""All jobs as one command: `magnetar-spark archive …`, `python -m magnetar.spark.jobs archive …`, or as the one file
that spark-submit wants."""

from __future__ import annotations

import typer
from magnetar.spark.jobs import archive, audit, dead_letters, load_planning, replay, window_aggregation
from magnetar.spark.jobs.job import HELP_NAMES

app = typer.Typer(
    name="magnetar-spark",
    no_args_is_help=True,
    context_settings=HELP_NAMES,
    help="Jobs on Pulsar topics that run in Apache Spark.",
    epilog="They run in this process, or where spark-submit takes them. Run by itself on a terminal, a job leaves out "
    "Spark's log; 2> FILE has it.",
)
app.command("archive")(archive.main)
app.command("replay")(replay.main)
app.command("windows")(window_aggregation.main)
app.command("dead-letters")(dead_letters.main)
app.command("audit")(audit.main)
app.command("load-planning")(load_planning.main)

if __name__ == "__main__":
    app()
