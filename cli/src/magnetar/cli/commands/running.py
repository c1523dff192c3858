"""Runs the work behind a command: errors in words on standard error, stable exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Final, TypeVar

import typer
import uvloop
from magnetar.admin_client.errors import AdminElsewhere, AdminRefused, AdminUnreachable, AdminUntrusted
from magnetar.bookie.operations import OperationRefused
from magnetar.cli.tools.errors import CookieConflict, SmokeTestFailed, UnreadableFile
from magnetar.control.errors import ControlRefused, ControlUnavailable, ControlUnserved
from magnetar.core.errors import MagnetarError, SettingError, Unavailable
from magnetar.core.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from magnetar.ledger.api import EntryNotFound, LedgerNotFound, LedgerUnauthorized
from magnetar.metadata.store import StoreUnavailable
from magnetar.process.console import show_error
from magnetar.process.service import TRY_AGAIN, explain_os_error
from magnetar.process.serving import prepare

T = TypeVar("T")

_REFUSED: Final = {
    401: "Show who you are, one of the superUserRoles: --auth-plugin and --auth-params, or --client-conf.",
    403: "This wants a role among the brokers' superUserRoles.",
    404: "`magnetar broker list` names the brokers that are there. One that only reads is asked itself: --admin-url.",
    500: "The broker's log says more.",
    503: "Try again in a moment: it moves, or the metadata store does not answer.",
}
"""What to do when the admin API answers with this status."""
_UNKNOWN_NAME: Final = ("Topic", "Namespace", "Tenant")
"""What a 404 begins with that is not about a broker."""

_REMEDIES: Final[dict[type[MagnetarError], str]] = {
    LedgerNotFound: "`magnetar bookie list-ledgers` names those that are there.",
    EntryNotFound: "Give a smaller --to; --force-recovery finds the true end of a ledger that nobody writes.",
    LedgerUnauthorized: "Give the ledger's --password; where bookies want TLS, --conf with a bookkeeper.conf for it.",
    OperationRefused: "Nothing was changed.",
    ControlUnserved: "Ask a bookie's own control port: of --processes, process K has one that is 100 times K higher.",
    ControlRefused: "Nothing was changed.",
    CookieConflict: "Nothing was changed.",
    AdminUntrusted: "Name the file of its authority: tlsTrustCertsFilePath in the client.conf of --client-conf.",
    AdminElsewhere: "If that is a broker of yours, give it as --admin-url: one that only reads is asked itself.",
    AdminUnreachable: "Check --admin-url (MAGNETAR_ADMIN_URL): the HTTP port of a broker that runs, or of a proxy.",
    UnreadableFile: "Name a file of the kind that this command reads: `magnetar bookie list-files` lists a bookie's.",
    ControlUnavailable: "Check the address: it is the bookie's control port, not the one of its clients.",
}
"""What to do about errors whose text says enough of what happened; the first kind that fits counts."""

_TRY_AGAIN: Final = "Run again with MAGNETAR_LOG=debug for more."


def complete(work: Coroutine[None, None, T]) -> T:
    """What the work returns. An expected error is printed, with what to do, and ends the command."""
    level = os.environ.get("MAGNETAR_LOG")
    if level:
        prepare(level)
    elif not logging.getLogger().handlers:
        # What goes wrong is told once, in words; what the parts below log about it would only hide that.
        logging.getLogger().addHandler(logging.NullHandler())
    with guarded():
        return uvloop.run(_interruptible(work))


async def _interruptible(work: Coroutine[None, None, T]) -> T:
    """What the work returns. Ctrl-C cancels it, so that it takes back what it has begun and leaves the terminal as it
    was; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        return await work  # Signals are the main thread's.
    loop, task, before = asyncio.get_running_loop(), asyncio.current_task(), signal.getsignal(signal.SIGINT)
    assert task is not None

    def interrupt(*_: object) -> None:
        # Not a handler of the loop, which may be stuck: in output that a pager does not take, for instance.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGINT, interrupt)
    try:
        return await work
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Expected errors of the block are printed, with what to do, and end the command with their exit code."""
    try:
        yield
    except BrokenPipeError:
        # Whoever read our output has enough. Python must not try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UnicodeEncodeError as error:
        # Python keeps what a shell gave in another encoding as surrogates, which nothing but a path may have.
        show_error(f"{error.object!r} is not in UTF-8.", "Correct the option, or use a terminal and a locale of UTF-8.")
        raise typer.Exit(EXIT_USAGE) from None
    except (MagnetarError, OSError) as error:
        show_error(*explain(error))
        raise typer.Exit(EXIT_USAGE if isinstance(error, SettingError) else EXIT_FAILED) from None


def explain(error: MagnetarError | OSError) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    if isinstance(error, OSError):
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and error.filename is not None:
            return f"{error.filename}: {error.strerror}", "Check the path: the folder that it names must be there."
        said, remedy = explain_os_error(error)
        return said, _TRY_AGAIN if remedy == TRY_AGAIN else remedy
    if isinstance(error, SettingError):
        return str(error), "Correct the option or the setting."
    if isinstance(error, StoreUnavailable):
        return f"The metadata store does not answer: {error}", "Check --metadata-store, and that the servers run."
    if isinstance(error, AdminRefused):
        return str(error), _after_refusal(error)
    if isinstance(error, SmokeTestFailed):
        return str(error), error.remedy
    for kind, remedy in _REMEDIES.items():
        if isinstance(error, kind):
            return str(error), remedy
    if isinstance(error, Unavailable):
        return f"{type(error).__name__}: {error}", "`magnetar bookie list-bookies` shows which bookies are up."
    return f"{type(error).__name__}: {error}", _TRY_AGAIN


def _after_refusal(error: AdminRefused) -> str:
    if error.status == 404 and str(error).startswith(_UNKNOWN_NAME):
        return "Check the name: TENANT/NAMESPACE, TENANT/NAMESPACE/RANGE, or persistent://TENANT/NAMESPACE/TOPIC."
    return _REFUSED.get(error.status, "Nothing was changed.")
