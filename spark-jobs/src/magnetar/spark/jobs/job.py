"""What the jobs' commands share: how they reach a cluster, their Spark session, and how they end.

A job is a function of its options, which are the fields of a dataclass; one of them says how the cluster is reached:

    app = job_app()

    @dataclass(frozen=True, kw_only=True)
    class Job:
        choices: ConnectionChoices
        topic: Topics = None

    @job_command(app)
    def main(job: Job) -> None:
        rows = reader(spark_session("archive"), job.choices).option("topic", job.topic).load()
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.core.errors import MagnetarError
from magnetar.spark import runtime
from magnetar.spark.cluster import close_clusters
from magnetar.spark.errors import BadOption, SparkSourceError
from magnetar.spark.options.connection import ConnectionOptions, connection_options
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

FORMAT: Final = "pulsar"

CLUSTER_PANEL: Final = "Cluster"
"""Where help has the options that all jobs share."""

HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}

SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""`spark-submit` sets it: logs are then as it was told."""

PIPED_COLUMNS: Final = 200
"""How wide tables may be where nobody's terminal says it: a file, a pod's log."""

FAILED: Final = 1
WRONG_OPTIONS: Final = 2
"""Exit codes. The second is typer's own, for what it finds wrong itself."""

_OF_OURS: Final = re.compile(r"\bmagnetar\.spark\.errors\.(\w+): (.+?)(?=\n\s*(?:SQLSTATE:|at |\n)|\Z)", re.DOTALL)
"""An error of the data source within one of Spark's, in whose workers it was raised."""

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url",
        envvar="PULSAR_SERVICE_URL",
        metavar="URL",
        help="The brokers or proxies, pulsar://host:6650.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
AdminUrl = Annotated[
    str,
    typer.Option(
        "--admin-url",
        envvar="PULSAR_ADMIN_URL",
        metavar="URL",
        help="The brokers' admin API, http://host:8080.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
MetadataUrl = Annotated[
    str,
    typer.Option(
        "--metadata-url",
        metavar="URL",
        help="The metadata store, zk:host:2181, for reading from bookies; else the admin API is asked.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="PULSAR_TOKEN_FILE",
        metavar="FILE",
        help="A file with a JSON Web Token to show.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TrustFile = Annotated[
    str,
    typer.Option(
        "--tls-trust-certs",
        metavar="FILE",
        help="A PEM file with the authorities of the servers' certificates.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]


def _pairs(what: str) -> Any:
    return typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help=f"Any further option of the data source{what} (docs/spark.md, Options). May be repeated.",
        rich_help_panel=CLUSTER_PANEL,
    )


SourceOptionPairs = Annotated[list[str] | None, _pairs("")]
SinkOptionPairs = Annotated[list[str] | None, _pairs(" for writing")]


class NoSpark(SparkSourceError):
    """Spark cannot be started; the text says what is missing."""


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
        """The choices as options of the data source. Raises `BadOption`."""
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
        return {**found, **self.further_options()}

    def further_options(self) -> dict[str, str]:
        """The options that `--option` named, with their values. Raises `BadOption`."""
        found = {}
        for pair in self.further:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise BadOption(f"--option {pair!r} is not understood: name=value is accepted")
            found[name] = value
        return found

    def connection(self) -> ConnectionOptions:
        """The checked connection options, for what does not go through Spark. Raises `BadOption`."""
        return connection_options(self.options())


def read_choices(
    service_url: ServiceUrl,
    admin_url: AdminUrl = "",
    metadata_url: MetadataUrl = "",
    token_file: TokenFile = None,
    tls_trust_certs: TrustFile = "",
    option: SourceOptionPairs = None,
) -> ConnectionChoices:
    """The connection options of a job that reads topics."""
    return ConnectionChoices(
        service_url=service_url,
        admin_url=admin_url,
        metadata_url=metadata_url,
        token_file=token_file,
        tls_trust_certs=tls_trust_certs,
        further=tuple(option or ()),
    )


def write_choices(
    service_url: ServiceUrl,
    admin_url: AdminUrl = "",
    token_file: TokenFile = None,
    tls_trust_certs: TrustFile = "",
    option: SinkOptionPairs = None,
) -> ConnectionChoices:
    """The connection options of a job that only writes topics, for which brokers are needed."""
    return read_choices(service_url, admin_url, "", token_file, tls_trust_certs, option)


def spark_session(name: str) -> SparkSession:
    """The session of a job: that of `spark-submit`, or one of its own on this machine. Times are UTC. `NoSpark`."""
    # Workers would run whatever `python3` the path has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise NoSpark("PySpark is not installed: pip install 'pyspark>=4.0', in the same environment") from None

    builder = SparkSession.builder.appName(f"magnetar-{name}").config("spark.sql.session.timeZone", "UTC")
    # What it draws would stand between a job's own lines.
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if SUBMITTED not in os.environ and sys.stderr.isatty():
        # Its stacks would hide the line that says what is wrong.
        builder = builder.config("spark.log.level", "FATAL")
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise NoSpark("Java does not start: Spark needs Java 17 or newer, on the path or in JAVA_HOME") from None


def job_app() -> typer.Typer:
    """An app for the one command of a module, with the settings that all commands share."""
    return typer.Typer(add_completion=False, context_settings=HELP_NAMES)


def job_command(
    app: typer.Typer, choices_of: Callable[..., ConnectionChoices] = read_choices
) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Makes a job's function the command of `app`. Its one parameter is made of the command's options: the field
    `choices` of those of `choices_of`, the others are options of the job's own. Errors end the command as `job_errors`
    says; then nothing is left connected."""

    def decorate(run: Callable[[Any], None]) -> Callable[..., None]:
        shared = inspect.signature(choices_of, eval_str=True).parameters
        (job,) = inspect.signature(run, eval_str=True).parameters.values()
        its_fields = inspect.signature(job.annotation, eval_str=True).parameters.values()

        @wraps(run)
        def command(**given: Any) -> None:
            choices = choices_of(**{name: given.pop(name) for name in shared})
            with job_errors():
                try:
                    run(job.annotation(choices=choices, **given))
                finally:
                    runtime.run(close_clusters())

        # Typer makes the options from this. All are named, so that some may have no default behind others that have.
        options = [*shared.values(), *(one for one in its_fields if one.name != "choices")]
        by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options]
        command.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
        return app.command()(command)

    return decorate


def job_console() -> Console:
    """The console of a job's own lines, on stdout: a file or a pipe gets them whole."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_COLUMNS
    return console


def reader(spark: SparkSession, choices: ConnectionChoices) -> DataFrameReader:
    """A batch reader of the cluster: only the topics are still to be named. Raises `BadOption`."""
    return spark.read.format(FORMAT).options(**choices.options())


def stream_reader(spark: SparkSession, choices: ConnectionChoices) -> DataStreamReader:
    """A stream reader of the cluster: only the topics are still to be named. Raises `BadOption`."""
    return spark.readStream.format(FORMAT).options(**choices.options())


def document_of(value: Any) -> Any:
    """A report, or a part of one, as JSON has it. Fields are in camel case unless their metadata has a `json` name,
    times are ISO texts."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [document_of(one) for one in value]
    if is_dataclass(value):
        return {_json_name(one): document_of(getattr(value, one.name)) for one in fields(value)}
    return value


def _json_name(of: Field[Any]) -> str:
    first, *rest = of.name.split("_")
    return str(of.metadata.get("json") or first + "".join(map(str.capitalize, rest)))


def json_file_option(what: str) -> Any:
    """The option `--json` of a job that makes a report: `what` it is called."""
    return typer.Option(
        "--json", metavar="FILE", help=f"Write the {what} to this file too; - : nothing but it, to stdout."
    )


def write_report(report: dict[str, Any], json_file: Path | None) -> bool:
    """Write a report to the file of `--json`, or to stdout for `-`. False: stdout has it, and takes nothing else.
    Raises `BadOption` where the file cannot be written."""
    if json_file is None:
        return True
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if str(json_file) == "-":
        typer.echo(text)
        return False
    try:
        json_file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadOption(f"--json {json_file} cannot be written: {error.strerror}") from None
    return True


@contextmanager
def job_errors() -> Iterator[None]:
    """What a user can do something about ends the command with a line; anything else keeps its traceback."""
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        yield
    except Exception as error:
        told = isinstance(error, MagnetarError) or type(error).__module__.startswith("pyspark.errors")
        if not told:
            raise
        name, text = reason_of(error)
        Console(stderr=True).print(f"[red]{name}[/red]: {escape(text)}", highlight=False, soft_wrap=True)
        raise typer.Exit(WRONG_OPTIONS if name == BadOption.__name__ else FAILED) from None
    finally:
        logging.getLogger().removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J hands Ctrl-C on, but logs before where it met it, with a stack."""
    return not str(record.msg).startswith("KeyboardInterrupt while")


def reason_of(error: Exception) -> tuple[str, str]:
    """An error's name and text, without what Spark puts around those of its workers and of its Java side."""
    text = str(error)
    ours = _OF_OURS.findall(text)
    if ours and not isinstance(error, MagnetarError):
        name, reason = ours[-1]  # Those before are what it came from.
        return str(name), str(reason).strip()
    return type(error).__name__, text.partition("JVM stacktrace:")[0].strip()
