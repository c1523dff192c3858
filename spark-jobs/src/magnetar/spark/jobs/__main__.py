"""All jobs as one command: `python -m magnetar.spark.jobs archive …`, or as the one file that spark-submit wants."""

from __future__ import annotations

import typer
from magnetar.spark.jobs import archive, audit, dead_letters, load_planning, replay, window_aggregation

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Jobs on Pulsar topics that run in Apache Spark.")
app.command("archive")(archive.main)
app.command("replay")(replay.main)
app.command("windows")(window_aggregation.main)
app.command("dead-letters")(dead_letters.main)
app.command("audit")(audit.main)
app.command("load-planning")(load_planning.main)

if __name__ == "__main__":
    app()
