"""Which part of an archive a path names: all of it, or some of its folders.

What is in the folders is not all part of the archive: attempts that were killed leave files. Only the archive's log
(`SINK_LOG`) tells which are, and Spark looks at it only where the whole archive is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from magnetar.spark.jobs.archive_layout import DATE_COLUMN, SINK_LOG, TOPIC_FOLDER_COLUMN
from magnetar.spark.jobs.files import under

if TYPE_CHECKING:
    from pyspark.sql import Column

Folder = dict[str, str]
"""The columns that folders are made of → this one's values. Empty: the whole archive."""


class Files(Protocol):
    """What `SparkFiles` has of this."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        ...

    def matching(self, pattern: str) -> list[str]:
        """Complete names of what a path means."""
        ...


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """Made by `part_of_archive`."""

    archive: str
    """The whole archive, or what the user has named where there is no archive around it."""
    folders: tuple[Folder, ...] = ()
    """The folders of the archive that are meant; none: all of it."""

    def condition(self) -> Column | None:
        """What selects the rows of these folders, by the columns that folders are named after; None: all rows."""
        from pyspark.sql import functions as f

        wanted: dict[tuple[str, ...], list[str]] = {}
        for folder in self.folders:
            # No value has a slash: it stands in a folder's name.
            wanted.setdefault(tuple(folder), []).append("/".join(folder.values()))
        found: Column | None = None
        for columns, values in wanted.items():
            within = f.concat_ws("/", *(f.col(column).cast("string") for column in columns)).isin(values)
            found = within if found is None else found | within
        return found


def part_of_archive(files: Files, path: str) -> ArchivePart:
    """What is named by a path, which may have `*` and the like in it, as Spark's paths may."""
    found = [_around(files, name) for name in files.matching(path)]
    archives = {one[0] for one in found if one is not None}
    if len(archives) != 1 or None in found:
        return ArchivePart(path)
    folders = [one[1] for one in found if one is not None]
    return ArchivePart(archives.pop(), () if {} in folders else tuple(folders))


def _around(files: Files, name: str) -> tuple[str, Folder] | None:
    """The archive that a folder is in, and which one it is there; None: there is none around it."""
    place, values = name.rstrip("/"), Folder()
    while not files.exists(under(place, SINK_LOG)):
        place, _, last = place.rpartition("/")
        column, _, value = last.partition("=")
        if column not in (DATE_COLUMN, TOPIC_FOLDER_COLUMN):
            return None
        values[column] = unquote(value)
    return place, values
