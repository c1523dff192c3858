"""What jobs decide, without Spark."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer.testing
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs import job as harness
from magnetar.spark.jobs.__main__ import app
from magnetar.spark.jobs.archive import ArchiveJob
from magnetar.spark.jobs.archive_layout import ArchiveDescription, check_beginnings, check_columns, partition_columns
from magnetar.spark.jobs.audit_report import (
    CompactionOutcome,
    DuplicateGroup,
    Duplicates,
    Gap,
    Silence,
    TopicAudit,
)
from magnetar.spark.jobs.audit_report import document as audit_document
from magnetar.spark.jobs.audit_report import show as show_audit
from magnetar.spark.jobs.dead_letter_report import DeadLetters, Origin, OriginGroup, ReasonGroup, Sample, document, show
from magnetar.spark.jobs.job import (
    PIPED_COLUMNS,
    ConnectionChoices,
    NoSpark,
    job_app,
    job_command,
    job_console,
    job_errors,
    reason_of,
    spark_session,
    write_choices,
    write_report,
)
from magnetar.spark.jobs.replay import time_option
from magnetar.spark.jobs.replay_plan import (
    ArchivedLedger,
    rounds_of,
    schema_of_target,
    targets_of,
    topics_with_keys_apart,
)
from magnetar.spark.jobs.running import (
    RowsSeen,
    moment,
    offsets_table,
    parse_offset_log,
    selection_options,
    short_topic,
    whole_topic,
)
from magnetar.spark.jobs.window_aggregation import WindowJob
from magnetar.spark.jobs.window_columns import Aggregate, Duration, check_names, parse_windows
from magnetar.spark.values.api import SchemaDefinition
from magnetar.wire.pulsar.enums import SchemaType
from rich.console import Console

CHOICES = ConnectionChoices(service_url="pulsar://localhost:6650")
SCHEMA = SchemaDefinition(type=SchemaType.AVRO, name="Person", data=b"{\xff}", properties={"a": "b"}, version=bytes(8))


class TestRunning:
    def test_selection(self) -> None:
        assert selection_options(["t"], "") == {"topic": "t"}
        assert selection_options(["t", "u"], "") == {"topics": '["t", "u"]'}
        assert selection_options(None, "public/default/t-.*") == {"topicsPattern": "public/default/t-.*"}
        for topics, pattern in (([], ""), (["t"], "t.*")):
            with pytest.raises(BadOption, match="one of both"):
                selection_options(topics, pattern)

    def test_topics(self) -> None:
        assert whole_topic("persistent://a/b/t-partition-3") == "persistent://a/b/t"
        assert short_topic("persistent://a/b/t") == "a/b/t"

    def test_names_of_topics_are_never_cut_off(self) -> None:
        file = io.StringIO()
        Console(width=40, file=file).print(offsets_table({f"persistent://{'n' * 60}": "3:7"}))
        assert "…" not in file.getvalue()
        assert file.getvalue().count("n") == 60 + "topic next message".count("n")

    def test_rows_of_batches_are_counted_once(self) -> None:
        seen = RowsSeen()
        first = {"batchId": 0, "numInputRows": 1000, "durationMs": {"triggerExecution": 500}}
        assert seen.take(first) == "batch 0: 1,000 rows in 0.5 s (2,000/s); 1,000 so far"
        assert seen.take(first) is None
        assert seen.take({"batchId": 1, "numInputRows": 0}) is None
        assert seen.take({"batchId": 1, "numInputRows": 5}) == "batch 1: 5 rows in 0.0 s; 1,005 so far"
        assert seen.rows == 1005

    def test_offset_log(self) -> None:
        log = 'v1\n{"batchWatermarkMs":0}\n{"persistent://a/b/t": "3:7"}'
        assert parse_offset_log(log) == {"persistent://a/b/t": "3:7"}
        assert parse_offset_log("v1\n{}\n-") == {}
        assert parse_offset_log("") == {}

    def test_moments(self) -> None:
        assert moment(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


class TestArchive:
    def test_description_is_written_and_read(self) -> None:
        description = ArchiveDescription(raw=False, by_topic=True, schemas={"persistent://a/b/t": (SCHEMA,), "u": ()})
        assert ArchiveDescription.from_json(description.to_json()) == description

    def test_later_runs_add_topics(self) -> None:
        before = ArchiveDescription(raw=False, by_topic=True, schemas={"t": (SCHEMA,), "u": ()})
        joined = before.joined(ArchiveDescription(raw=False, by_topic=True, schemas={"u": (SCHEMA,)}))
        assert joined.schemas == {"t": (SCHEMA,), "u": (SCHEMA,)}

    def test_later_runs_write_alike(self) -> None:
        before = ArchiveDescription(raw=True, by_topic=True)
        with pytest.raises(BadOption, match="begun with --raw, and goes on so, not without"):
            before.joined(ArchiveDescription(raw=False, by_topic=True))
        with pytest.raises(BadOption, match="say --by-topic"):
            before.joined(ArchiveDescription(raw=True, by_topic=False))

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "raw": true, "byTopic": false, "schemas": 3}'])
    def test_no_description(self, text: str) -> None:
        with pytest.raises(BadOption, match=r"_magnetar/archive\.json is no description"):
            ArchiveDescription.from_json(text)

    def test_format_of_the_future(self) -> None:
        with pytest.raises(BadOption, match="format 2, and 1 is the newest"):
            ArchiveDescription.from_json('{"format": 2}')

    def test_folders(self) -> None:
        assert partition_columns(by_topic=False) == ["publish_date"]
        assert partition_columns(by_topic=True) == ["source_topic", "publish_date"]
        check_columns(["value", "__topic"], ["publish_date"])
        with pytest.raises(BadOption, match="publish_date itself"):
            check_columns(["value", "Publish_Date"], ["publish_date"])

    @pytest.mark.parametrize(
        ("planned", "committed", "files"),
        [(False, False, False), (True, False, False), (True, False, True), (True, True, True)],
    )
    def test_checkpoints_that_fit(self, planned: bool, committed: bool, files: bool) -> None:
        """Also of a run that was killed at any time."""
        check_beginnings(planned=planned, committed=committed, files=files, checkpoint="c", output="o")

    def test_checkpoints_that_do_not(self) -> None:
        with pytest.raises(BadOption, match="o has an archive, and there is no checkpoint of it at c"):
            check_beginnings(planned=False, committed=False, files=True, checkpoint="c", output="o")
        with pytest.raises(BadOption, match="the checkpoint c is of an archive that is not at o"):
            check_beginnings(planned=True, committed=True, files=False, checkpoint="c", output="o")

    def test_tasks(self) -> None:
        job = ArchiveJob(choices=CHOICES, topic=["t"], output="/archive/")
        assert job.tasks_max() == 16
        assert job.checkpoint_path == "/archive/_magnetar/checkpoint"
        assert job.source_options()["rawValues"] == "false"

    def test_keys_are_read_so_that_they_can_be_restored(self) -> None:
        def given(*further: str) -> tuple[str, str]:
            choices = replace(CHOICES, further=further)
            options = ArchiveJob(choices=choices, topic=["t"], output="/a").source_options()
            return options["keyType"], options["columns"]

        assert given() == ("binary", '["*", "__keyIsBytes"]')
        assert given("columns=close,__key", "keyType=text") == ("binary", '["close", "__key", "__keyIsBytes"]')


class TestReplay:
    def test_rounds_go_by_ledgers(self) -> None:
        ledgers = [ArchivedLedger("t", ledger, 4, 0, 0) for ledger in (12, 10, 11)]
        ledgers += [ArchivedLedger("u", 7, 100, 0, 0), ArchivedLedger("u", 9, 1, 0, 0)]
        found = rounds_of(ledgers, rows_max=8)
        assert [(dict(one.ranges), one.rows, one.tasks) for one in found] == [
            ({"t": (10, 11), "u": (7, 7)}, 108, 2),
            ({"t": (12, 12), "u": (9, 9)}, 5, 2),
        ]
        assert rounds_of([]) == []

    def test_targets(self) -> None:
        topics = ["persistent://a/b/t-partition-0", "persistent://a/b/u"]
        assert set(targets_of(topics, "new", "").values()) == {"persistent://public/default/new"}
        assert targets_of(topics, "", "x/y") == {
            topics[0]: "persistent://x/y/t",
            topics[1]: "persistent://x/y/u",
        }
        for topic, namespace in (("", ""), ("t", "x/y"), ("", "x"), ("", "x/y/z")):
            with pytest.raises(BadOption, match="--namespace"):
                targets_of(topics, topic, namespace)

    def test_schemas_of_targets(self) -> None:
        description = ArchiveDescription(
            raw=False, by_topic=True, schemas={"persistent://a/b/t": (SCHEMA,), "persistent://a/b/u": ()}
        )
        t, u = "persistent://a/b/t-partition-0", "persistent://a/b/u"
        assert schema_of_target(description, {t: "x", u: "y"}) == {"x": SCHEMA, "y": None}
        # They differ.
        assert schema_of_target(description, {t: "x", u: "x"}) == {"x": None}
        assert schema_of_target(None, {t: "x"}) == {"x": None}

    def test_keys(self) -> None:
        apart = SchemaDefinition(type=SchemaType.KEY_VALUE, properties={"kv.encoding.type": "SEPARATED"})
        inline = SchemaDefinition(type=SchemaType.KEY_VALUE, properties={"kv.encoding.type": "INLINE"})
        schemas = {"x": apart, "y": inline, "z": None}
        assert topics_with_keys_apart(schemas, {"a": "x", "b": "x", "c": "y", "d": "z"}) == {"a", "b"}

    def test_times(self) -> None:
        assert time_option("--published-from", "") is None
        assert time_option("--published-from", "2026-03-01T12:00:00Z") == 1_772_366_400_000
        with pytest.raises(BadOption, match="--published-from 'noon'"):
            time_option("--published-from", "noon")


class TestWindows:
    def test_durations(self) -> None:
        assert Duration.parse("--window", "5min") == Duration("5 minutes", 300_000)
        assert Duration.parse("--window", "30 s") == Duration("30 seconds", 30_000)
        assert Duration.parse("--watermark", "0s", 0).milliseconds == 0
        for text in ("", "5", "min", "0s", "1 fortnight", "-1s", "1.5h"):
            with pytest.raises(BadOption, match="--window"):
                Duration.parse("--window", text)

    def test_windows(self) -> None:
        assert parse_windows("5min", "") == (Duration("5 minutes", 300_000),) * 2
        assert parse_windows("5min", "1min")[1].milliseconds == 60_000
        with pytest.raises(BadOption, match="left out"):
            parse_windows("1min", "5min")

    def test_aggregates(self) -> None:
        assert Aggregate.parse("count").name == "count"
        assert Aggregate.parse("sum:order.amount").name == "sum_order_amount"
        for text in ("", "sum", "count:a", "median:a"):
            with pytest.raises(BadOption, match="--aggregate"):
                Aggregate.parse(text)

    def test_names(self) -> None:
        columns = ["amount", "order", "__key", "__topic"]
        check_names(["__key", "order.id"], [Aggregate.parse("sum:amount")], columns)
        with pytest.raises(BadOption, match="no column price; there are amount"):
            check_names([], [Aggregate.parse("avg:price")], columns)
        with pytest.raises(BadOption, match="called count"):
            check_names([], [Aggregate.parse("count")] * 2, columns)

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"output": "o", "output_topic": "t", "checkpoint": "c"}, "not both"),
            ({"output_topic": "t"}, "--checkpoint is not set"),
            ({"output": "o", "checkpoint": "c", "mode": "update"}, "files cannot be changed"),
            ({"output_topic": "t", "checkpoint": "c", "mode": "complete"}, "cannot be replaced"),
            ({"mode": "all"}, "append, update, complete are accepted"),
        ],
    )
    def test_what_makes_no_query(self, given: dict[str, str], why: str) -> None:
        job = WindowJob(choices=CHOICES, topic=["t"], window="1min", **given)  # type: ignore[arg-type] # Texts all.
        with pytest.raises(BadOption, match=why):
            job.check()


@dataclass(frozen=True, kw_only=True)
class SmallJob:
    choices: ConnectionChoices
    needed: str
    number: int = 3


def shown(text: str) -> str:
    return " ".join(text.split())


class TestReports:
    def test_dead_letters(self, tmp_path: Path) -> None:
        sample = Sample(message_id="1:2", origin_message_id="7:8", published=moment(1_700_000_000_000))
        reason = ReasonGroup(reason="[no] card", messages=3, reconsumed_max=16, oldest=sample, newest=sample)
        origin = Origin(topic="persistent://a/b/t", subscription="s", dead_letter_topic="persistent://a/b/t-s-DLQ")
        group = OriginGroup(
            origin=origin, messages=5, reasons_found=2, first=sample.published, last=sample.published, reasons=[reason]
        )
        report = DeadLetters(topics=[origin.dead_letter_topic], groups=[group])
        console = Console(width=160, record=True, quiet=False, file=(tmp_path / "out").open("w"))
        show(report, console, 1)
        console.file.close()
        text = shown((tmp_path / "out").read_text())
        for part in ("5 dead letters", "a/b/t-s-DLQ", "[no] card", "16 times", "1:2 (7:8)", "and 1 more reasons"):
            assert part in text
        write_report(document(report), tmp_path / "report.json")
        found = json.loads((tmp_path / "report.json").read_text())
        assert found["messages"] == 5
        assert found["groups"][0]["reasons"][0]["oldest"] == {
            "messageId": "1:2",
            "originMessageId": "7:8",
            "published": "2023-11-14T22:13:20+00:00",
        }
        with pytest.raises(BadOption, match="cannot be written"):
            write_report({}, tmp_path / "no" / "such" / "folder")

    def test_audit(self, tmp_path: Path) -> None:
        first, last = moment(1_700_000_000_000), moment(1_700_000_600_000)
        audit = TopicAudit(
            topic="persistent://a/b/t",
            messages=10,
            bytes=4096,
            first=first,
            last=last,
            compaction=CompactionOutcome(
                keys=3,
                messages_left=2,
                bytes_saved=3072,
                bytes_left=1024,
                tombstones=1,
                keys_deleted=1,
                keyless=1,
                keyless_bytes=5,
                keyless_stay=False,
            ),
            duplicates=Duplicates(
                messages=2,
                bytes=20,
                groups=1,
                soon=1,
                soon_ms=60_000,
                samples=[
                    DuplicateGroup(
                        topic="t", copies=3, key="[k]", first_message_id="1:1", last_message_id="1:9", apart_ms=1500
                    )
                ],
            ),
            gaps=[Gap(topic="t", ledger_id=4, entries_missing=2, of_entries=9)],
            silence=Silence(begin=first, end=last),
        )
        console = Console(width=160, file=(tmp_path / "out").open("w"))
        show_audit([audit], console)
        console.file.close()
        text = shown((tmp_path / "out").read_text())
        for part in ("saves 3.0 KiB (75 %)", "they go with a compaction", "[k]", "1.5 s", "ledger 4: 2 of 9", "10 min"):
            assert part in text
        [found] = audit_document([audit])["topics"]
        assert found["compaction"]["bytesSaved"] == 3072
        assert found["duplicates"]["groupsSoon"] == 1
        assert found["duplicates"]["samples"][0]["firstMessageId"] == "1:1"
        assert found["gaps"] == [{"topic": "t", "ledger": 4, "entriesMissing": 2, "ofEntries": 9}]
        assert found["longestSilence"] == {"begin": "2023-11-14T22:13:20+00:00", "end": "2023-11-14T22:23:20+00:00"}
        json.dumps(found)


class UnderSpark(Exception):
    """As PySpark's, which have their module."""

    __module__ = "pyspark.errors.exceptions.captured"


class TestCommands:
    @pytest.mark.parametrize("name", ["archive", "replay", "windows", "dead-letters", "audit", "load-planning"])
    def test_help(self, name: str) -> None:
        found = typer.testing.CliRunner(env={"COLUMNS": "80"}).invoke(app, [name, "-h"])
        assert found.exit_code == 0
        text = shown(found.output)
        for part in ("--service-url", "Exit code: 0", f"magnetar-spark {name} --"):
            assert part in text
        assert not re.search(r"--[a-z-]*…", text), "a name is cut off"

    @pytest.mark.parametrize(("error", "code"), [(None, 0), (BadOption("x"), 2), (UnderSpark("y"), 1)])
    def test_harness(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None, code: int) -> None:
        """Options of the cluster become choices, others reach the job, and clusters are closed however it ends."""
        told: list[object] = []
        one = job_app()

        @job_command(one, write_choices)
        def main(job: SmallJob) -> None:
            told.append(job)
            if error is not None:
                raise error

        async def closed() -> None:
            told.append("closed")

        monkeypatch.setattr(harness, "close_clusters", closed)
        arguments = ["n", "--service-url", "pulsar://localhost:6650", "--option", "a=b"]
        assert typer.testing.CliRunner().invoke(one, arguments).exit_code == code
        assert told == [SmallJob(choices=replace(CHOICES, further=("a=b",)), needed="n", number=3), "closed"]

    def test_completion_is_there_to_be_installed(self) -> None:
        assert "--install-completion" in typer.testing.CliRunner().invoke(app, ["--help"]).output

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["archive", "--output", "/o"], "name topics by --topic or by --topics-pattern"),
            (["archive", "--output", "/o", "--topic", "t", "--compression", "rar"], "--compression 'rar'"),
            (
                ["archive", "--output", "/o", "--topic", "t", "--file-bytes", "100k"],
                "option --file-bytes: '100k' is not understood; a size from 1048576 bytes on is accepted: 1048576, "
                "64m, 1g. About how many stored bytes go into one file",
            ),
            (["replay", "--archive", "/a"], "--topic or by --namespace"),
            (["replay", "--archive", "/a", "--topic", "t", "--published-from", "noon"], "--published-from 'noon'"),
            (["windows", "--topic", "t", "--window", "5"], "--window '5'"),
            (["audit"], "name topics by"),
        ],
    )
    def test_wrong_arguments_end_before_spark_begins(self, arguments: list[str], why: str) -> None:
        found = typer.testing.CliRunner().invoke(app, [*arguments, "--service-url", "pulsar://localhost:6650"])
        assert found.exit_code == 2
        assert why in shown(found.output)


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (BadOption("there is no option x"), ("BadOption", "there is no option x")),
            (
                UnderSpark("An exception was thrown from the Python worker:\nmagnetar.spark.errors.SinkRefused: why\n"),
                ("SinkRefused", "why"),
            ),
            (
                UnderSpark(
                    "[PYTHON_DATA_SOURCE_ERROR] Failed: magnetar.spark.errors.BadOption: which\n SQLSTATE: 38000"
                ),
                ("BadOption", "which"),
            ),
            (
                UnderSpark(
                    "[STREAM_FAILED] Query terminated: Writing job failed.\n\nJVM stacktrace:\norg.apache.X\n\tat a.b\n"
                    "Caused by: org.apache.Y: magnetar.spark.errors.DataLoss: gone\n\tat c.d"
                ),
                ("DataLoss", "gone"),
            ),
            (UnderSpark("[PATH_NOT_FOUND] Path.\n\nJVM stacktrace:\n\tat a"), ("UnderSpark", "[PATH_NOT_FOUND] Path.")),
        ],
    )
    def test_the_reason_is_told_alone(self, error: Exception, told: tuple[str, str]) -> None:
        assert reason_of(error) == told

    @pytest.mark.parametrize(("error", "code"), [(BadOption("x"), 2), (UnderSpark("y"), 1)])
    def test_exit_codes(self, error: Exception, code: int) -> None:
        with pytest.raises(typer.Exit) as ended, job_errors():
            raise error
        assert ended.value.exit_code == code

    def test_what_is_no_terminal_gets_tables_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        assert job_console().width == PIPED_COLUMNS

    def test_interrupts_leave_no_stack(self, caplog: pytest.LogCaptureFixture) -> None:
        with job_errors():
            for text in ("KeyboardInterrupt while sending command.", "something else"):
                logging.getLogger().error(text)
        assert [record.message for record in caplog.records] == ["something else"]

    def test_without_pyspark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyspark.errors", None)
        with pytest.raises(NoSpark, match="pip install"):
            spark_session("x")
