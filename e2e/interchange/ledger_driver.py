"""BookKeeper's Java client at the end of a pipe: `java/LedgerDriver.java`, compiled against the distribution's jars."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from e2e.interchange.java_pipe import JavaPipe
from e2e.peers import distribution

SOURCE = Path(__file__).parent / "java" / "LedgerDriver.java"
OPENED = ("java.base/java.nio", "java.base/jdk.internal.misc", "java.base/java.util.zip", "java.base/java.io")
Value = str | int | bool


class ClientError(Exception):
    """What BookKeeper's client threw; `code` is BKException's, 0 for another exception."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


# BKException's codes that these tests expect.
NO_SUCH_LEDGER_ON_BOOKIE = -7
NO_SUCH_ENTRY = -13
NO_SUCH_LEDGER = -25
LEDGER_FENCED = -101
UNAUTHORIZED = -102


@functools.cache
def compiled() -> Path:
    """The folder of classes. Raises subprocess.CalledProcessError when it does not compile."""
    folder = Path(tempfile.gettempdir()) / f"magnetar-ledger-driver-{distribution.PULSAR_VERSION}"
    result = folder / "LedgerDriver.class"
    if not result.exists() or result.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(["javac", "-d", str(folder), "-cp", f"{jars()}", str(SOURCE)], check=True)
    return folder


def jars() -> str:
    return f"{distribution.home()}/lib/*"


class LedgerDriver(JavaPipe):
    """One JVM with any number of clients and ledger handles, each known by a name."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = [word for package in OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        quiet = ["-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true"]
        super().__init__([*opened, *quiet, "-cp", f"{compiled()}:{jars()}", "LedgerDriver"], log)
        self._names = 0

    def ask(self, operation: str, **options: Value) -> dict[str, str]:
        """One operation; its answer by name. ClientError."""
        words = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()
        ]
        self.tell(" ".join([operation, *words]))
        answer = self.answer()
        outcome, _, rest = answer.partition(" ")
        if outcome == "error":
            code, _, text = rest.partition(" ")
            raise ClientError(int(code), text)
        assert outcome == "ok", f"the driver ended; it answered {answer!r} to {operation}"
        return dict(word.split("=", 1) for word in rest.split(" ") if word)

    def client(self, uri: str, *, v2: bool, **options: Value) -> LedgerClient:
        name = self._new_name("client")
        self.ask("client", client=name, uri=uri, v2=v2, **options)
        return LedgerClient(self, name)

    def _new_name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def new_handle(self) -> str:
        """A name for a handle."""
        return self._new_name("handle")


class LedgerClient:
    """A `org.apache.bookkeeper.client.BookKeeper`."""

    def __init__(self, driver: LedgerDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def create(self, seed: str, **options: Value) -> Handle:
        """E, Qw and Qa are 3, 3 and 2, the digest is CRC32C, the password empty, unless the options say otherwise."""
        handle = self._driver.new_handle()
        answer = self._driver.ask("create", client=self._name, handle=handle, **options)
        return Handle(self._driver, handle, int(answer["ledger"]), seed, answer)

    def open(self, ledger: int, seed: str, *, recovery: bool, **options: Value) -> Handle:
        handle = self._driver.new_handle()
        answer = self._driver.ask("open", client=self._name, handle=handle, ledger=ledger, recovery=recovery, **options)
        return Handle(self._driver, handle, ledger, seed, answer)

    def delete(self, ledger: int) -> None:
        self._driver.ask("delete", client=self._name, ledger=ledger)

    def bookies(self) -> tuple[set[str], set[str]]:
        """Those that are writable, those that are read-only."""
        answer = self._driver.ask("bookies", client=self._name)
        writable, read_only = (set(filter(None, answer[name].split(","))) for name in ("writable", "readonly"))
        return writable, read_only

    def entries_stored(self, bookie: str, ledger: int) -> int:
        """How many entries of the ledger the bookie says that it has."""
        return int(self._driver.ask("entries-of", client=self._name, bookie=bookie, ledger=ledger)["count"])

    def close(self) -> None:
        self._driver.ask("close-client", client=self._name)


class Handle:
    """A `org.apache.bookkeeper.client.LedgerHandle`; its entries follow from the seed."""

    def __init__(self, driver: LedgerDriver, name: str, ledger: int, seed: str, state: dict[str, str]) -> None:
        self._driver = driver
        self._name = name
        self.ledger = ledger
        self.seed = seed
        self.opened = State(state)

    def ask(self, operation: str, **options: Value) -> dict[str, str]:
        return self._driver.ask(operation, handle=self._name, **options)

    def add(self, count: int, **options: Value) -> State:
        """Add entries and wait for all; of 100 bytes unless `size` says otherwise."""
        return State(self.ask("add", seed=self.seed, count=count, **options))

    def add_and_leave(self, count: int) -> None:
        """Add entries and do not wait: what becomes of them is seen later."""
        self.ask("add-pending", seed=self.seed, count=count)

    def read(self, **options: Value) -> int:
        """Read and check all entries up to the LAC, or from `first` to `last`; how many they were."""
        return int(self.ask("read", seed=self.seed, **options)["count"])

    def state(self) -> State:
        return State(self.ask("state"))

    def force(self) -> State:
        return State(self.ask("force"))

    def last_confirmed(self, operation: str = "lac") -> int:
        """By `lac` (a quorum), `try-lac` (all, best effort) or `explicit-lac`."""
        return int(self.ask(operation)["lac"])

    def load(self, **options: Value) -> None:
        """Add entries without end."""
        self.ask("load", seed=self.seed, **options)

    def loaded(self) -> int:
        """The last entry that is confirmed so far; asserts that none failed."""
        return _confirmed(self.ask("loaded"))

    def stop_load(self) -> int:
        """The last confirmed entry; asserts that none failed."""
        return _confirmed(self.ask("stop-load"))

    def close(self) -> None:
        self.ask("close")

    def forget(self) -> None:
        """Leave it open, as a writer does that died."""
        self.ask("forget")


def _confirmed(answer: dict[str, str]) -> int:
    assert answer["failure"] == "0", f"an add failed with {answer['failure']}"
    return int(answer["confirmed"])


class State:
    """What a handle knows of its ledger."""

    def __init__(self, answer: dict[str, str]) -> None:
        self.last_confirmed = int(answer["lac"])
        self.length = int(answer["length"])
        self.state = answer["state"]
        self.ensembles = {
            int(first): bookies.split(",")
            for first, _, bookies in (segment.partition("@") for segment in answer["ensembles"].split(";"))
        }

    @property
    def bookies(self) -> set[str]:
        """All that any segment names."""
        return {bookie for ensemble in self.ensembles.values() for bookie in ensemble}
