"""What the jobs' commands share: how they reach a cluster, their Spark session, and how they end.

A job is a typer function whose connection options are the annotated names below:

    def main(service_url: ServiceUrl, admin_url: AdminUrl = "", …) -> None:
        choices = ConnectionChoices(service_url=service_url, admin_url=admin_url, …)
        with job_errors():
            rows = reader(spark_session("archive"), choices).option("topic", topic).load()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.core.errors import MagnetarError
from magnetar.spark.connecting import ConnectionOptions
from magnetar.spark.connection_options import connection_options
from magnetar.spark.errors import BadOption
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

FORMAT: Final = "pulsar"

ServiceUrl = Annotated[
    str, typer.Option("--service-url", envvar="PULSAR_SERVICE_URL", help="The brokers or proxies, pulsar://host:6650.")
]
AdminUrl = Annotated[
    str, typer.Option("--admin-url", envvar="PULSAR_ADMIN_URL", help="The brokers' admin API, http://host:8080.")
]
MetadataUrl = Annotated[
    str,
    typer.Option(
        "--metadata-url",
        help="The metadata store, zk:host:2181, for reading from bookies; else the admin API is asked.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="PULSAR_TOKEN_FILE", help="A file with a JSON Web Token to show."),
]
TrustFile = Annotated[
    str, typer.Option("--tls-trust-certs", help="A PEM file with the authorities of the servers' certificates.")
]
SourceOptionPairs = Annotated[
    list[str] | None,
    typer.Option("--option", help="Any further option of the data source, name=value. May be repeated."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionChoices:
    """How the cluster is reached, as a command was told."""

    service_url: str
    admin_url: str = ""
    metadata_url: str = ""
    token_file: Path | None = None
    tls_trust_certs: str = ""
    further: tuple[str, ...] = ()
    """`name=value`, options of the data source."""

    def options(self) -> dict[str, str]:
        """As options of the data source. `BadOption`."""
        found = {"service.url": self.service_url}
        if self.admin_url:
            found["admin.url"] = self.admin_url
        if self.metadata_url:
            found["metadata.url"] = self.metadata_url
        if self.tls_trust_certs:
            found["tlsTrustCertsFilePath"] = self.tls_trust_certs
        if self.token_file is not None:
            try:
                found["token"] = self.token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise BadOption(f"--token-file {self.token_file} cannot be read: {error.strerror}") from None
        for pair in self.further:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise BadOption(f"--option {pair!r} is not understood: name=value is accepted")
            found[name] = value
        return found

    def connection(self) -> ConnectionOptions:
        """Checked, for what does not go through Spark. `BadOption`."""
        return connection_options(self.options())


def spark_session(name: str) -> SparkSession:
    """The session of a job: that of `spark-submit`, or one of its own on this machine. Times are UTC."""
    # Workers would run whatever `python3` the path has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"magnetar-{name}").config("spark.sql.session.timeZone", "UTC")
    # What it draws would stand between a job's own lines.
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def reader(spark: SparkSession, choices: ConnectionChoices) -> DataFrameReader:
    """For a batch, of which only the topic is to be said."""
    return spark.read.format(FORMAT).options(**choices.options())


def stream_reader(spark: SparkSession, choices: ConnectionChoices) -> DataStreamReader:
    """For a stream, of which only the topic is to be said."""
    return spark.readStream.format(FORMAT).options(**choices.options())


@contextmanager
def job_errors() -> Iterator[None]:
    """What a user can do something about ends the command with a line; anything else keeps its traceback."""
    try:
        yield
    except Exception as error:
        told = isinstance(error, MagnetarError) or type(error).__module__.startswith("pyspark.errors")
        if not told:
            raise
        # Spark's own carry what its Java side was doing.
        text = str(error).partition("JVM stacktrace:")[0].strip()
        line = f"[red]{type(error).__name__}[/red]: {escape(text)}"
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
