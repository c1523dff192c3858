"""Which part of an archive is replayed, and under which name, without Spark."""

from __future__ import annotations

from magnetar.spark.jobs.archive_parts import ArchivePart, part_of_archive
from magnetar.spark.jobs.replay_plan import ArchivedLedger, new_name, rounds_of, tasks_in


class ArchiveFiles:
    """Two archives, with these folders."""

    def __init__(self, *folders: str) -> None:
        self._folders = list(folders)

    def exists(self, path: str) -> bool:
        return path in ("file:/one/_spark_metadata", "file:/two/_spark_metadata")

    def matching(self, pattern: str) -> list[str]:
        return [f"file:{one}" for one in self._folders]


class TestPartsOfArchives:
    def test_the_archive_around_folders(self) -> None:
        days = ("/one/source_topic=a.b.c%25/publish_date=2026-03-01", "/one/source_topic=a.b.d/publish_date=2026-03-02")
        for folders, found in (
            (days, [{"publish_date": "2026-03-01", "source_topic": "a.b.c%"},
                    {"publish_date": "2026-03-02", "source_topic": "a.b.d"}]),
            (["/one/publish_date=2026-03-01/"], [{"publish_date": "2026-03-01"}]),
            (["/one"], []),
            (["/one/"], []),
            ([days[0], "/one"], []),
        ):  # fmt: skip
            part = part_of_archive(ArchiveFiles(*folders), "as named")
            assert (part.archive, [dict(one) for one in part.folders]) == ("file:/one", found)

    def test_what_is_in_no_archive_is_read_as_it_is_named(self) -> None:
        for folders in (
            [],
            ["/three"],
            ["/three/publish_date=2026-03-01"],
            ["/one/publish_date=2026-03-01/part-0.parquet"],
            ["/one/of=another/publish_date=2026-03-01"],
            ["/one/publish_date=2026-03-01", "/two/publish_date=2026-03-01"],
            ["/one/publish_date=2026-03-01", "/three"],
        ):
            assert part_of_archive(ArchiveFiles(*folders), "as named") == ArchivePart("as named")


def test_a_name_keeps_the_number_of_tasks() -> None:
    def name(topics: int) -> str:
        return new_name("0a1b", rounds_of([ArchivedLedger(f"t{topic}", 1, 1, 0, 0) for topic in range(topics)]))

    assert [name(0), name(3), name(1_000)] == ["0a1b-1", "0a1b-3", "0a1b-256"]
    assert [tasks_in(name(3)), tasks_in(name(1_000)), tasks_in("a-1-7")] == [3, 256, 7]
    # Of an older version, or somebody's own.
    assert [tasks_in(one) for one in ("0a1b2c3d4e5f", "256", "a-0", "a-257", "a-b", "a-", "a-٣")] == [None] * 7
