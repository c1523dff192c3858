"""Files where Spark has them, local ones, S3, HDFS alike: Hadoop's file systems with the session's own settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFiles:
    """Small files by their paths, as the driver sees them."""

    def __init__(self, spark: SparkSession) -> None:
        # Spark has no public way to its file systems from Python.
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        file_system, place = self._place(path)
        return bool(file_system.exists(place))

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""
        file_system, place = self._place(folder)
        if not file_system.exists(place):
            return []
        return sorted(status.getPath().getName() for status in file_system.listStatus(place))

    def read(self, path: str) -> str:
        """A whole small file of UTF-8."""
        file_system, place = self._place(path)
        stream = file_system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Replace a small file: who reads sees the old one or the new one, where the file system renames so."""
        file_system, place = self._place(path)
        beside = self._jvm.org.apache.hadoop.fs.Path(f"{path}.new")
        stream = file_system.create(beside, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        file_system.delete(place, False)
        file_system.rename(beside, place)

    def matching(self, pattern: str) -> list[str]:
        """Complete names of what a path means that may have `*` and the like in it, but for what Spark does not read;
        none where there is nothing."""
        file_system, place = self._place(pattern)
        found = file_system.globStatus(place)  # None where no such thing is there and nothing is to be matched.
        paths = [status.getPath() for status in found or ()]
        return sorted(str(path.toString()) for path in paths if not str(path.getName()).startswith(("_", ".")))

    def complete(self, path: str) -> str:
        """With its scheme, as others have to name it."""
        file_system, place = self._place(path)
        return str(file_system.makeQualified(place).toString())

    def _place(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._configuration), place


def under(folder: str, *names: str) -> str:
    """The path of what is in a folder."""
    return "/".join([folder.rstrip("/"), *names])
