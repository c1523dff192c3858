"""Runs the work behind a command: errors in words on standard error, stable exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from magnetar.core.errors import MagnetarError, PeerError, SettingError, Unavailable

if TYPE_CHECKING:
    from magnetar.operator.plugin.kubernetes import Kubernetes
    from magnetar.operator.plugin.target import Target
    from rich.console import Console

T = TypeVar("T")

EXIT_FAILED: Final = 1
"""It could not be done, or was not done."""
EXIT_USAGE: Final = 2
"""A wrong option, a name of nothing that there is, or no answer to a question."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C while a command worked, as shells number it."""

WIDE_COLUMNS: Final = 240
"""Where there is no terminal: programs and files have room."""


def run(target: Target, work: Callable[[Kubernetes], Awaitable[T]]) -> T:
    """What the work returns, done with the API server that the options mean. An expected error is printed, with what
    to do, and ends the command."""
    from magnetar.operator.plugin.connection import open_kubernetes

    async def whole() -> T:
        _stop_in_good_order()
        async with open_kubernetes(target) as kubernetes:
            return await work(kubernetes)

    if not logging.getLogger().handlers:
        # What goes wrong is told once, in words; what the libraries log about it would only hide that.
        logging.getLogger().addHandler(logging.NullHandler())
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with guarded():
        return asyncio.run(whole())


def _stop_in_good_order() -> None:
    """SIGTERM ends the command as Ctrl-C does: a `kubectl` that works for it must not outlive it."""
    task = asyncio.current_task()
    assert task is not None
    # Elsewhere than in a main thread, and on Windows, there are no signals to handle.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


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
    except (MagnetarError, OSError) as error:
        complain(*explain(error))
        raise typer.Exit(EXIT_USAGE if isinstance(error, SettingError) else EXIT_FAILED) from None


def explain(error: MagnetarError | OSError) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    from magnetar.operator.kubernetes.errors import KindMissing, NotPermitted, Refused, ServerUnavailable

    text = str(error) or type(error).__name__
    if isinstance(error, SettingError):
        return text, "Nothing was changed; --help explains arguments and options."
    if isinstance(error, KindMissing):
        return text, "Install the operator first; `kubectl config current-context` tells which cluster was asked."
    if isinstance(error, NotPermitted):
        return text, "Ask for the right, or choose another --context; `kubectl auth can-i --list` shows yours."
    if isinstance(error, Refused):
        return f"Kubernetes refuses it: {text}", "Nothing was changed."
    if isinstance(error, PeerError):
        return text, "Nothing was changed."
    if isinstance(error, ServerUnavailable):
        return text, "Try again; `kubectl cluster-info` tells whether the API server answers."
    if isinstance(error, Unavailable):
        return text, "Try again; `kubectl pulsar status` shows what is ready, and what is not."
    return text, "Look at the name, and at the rights of the file."


def console(*, error: bool = False, force_width: int | None = None) -> Console:
    """Standard output, or standard error. Colours only on a terminal, and not with NO_COLOR; wide lines elsewhere."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = force_width or (None if stream.isatty() else WIDE_COLUMNS)
    return Console(stderr=error, width=width, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """A remark for people, on standard error: programs that read the output do not see it."""
    _say(text, "dim")


def warn(text: str) -> None:
    """Something that is not as it should be, on standard error."""
    _say(text, "yellow")


def done(text: str) -> None:
    """What has been done, on standard error."""
    _say(f"● {text}", "green")


def complain(message: str, hint: str) -> None:
    """What went wrong and what to do."""
    _say(f"● {message}", "red")
    _say(f"  {hint}", "dim")


def _say(text: str, style: str) -> None:
    from rich.text import Text

    found = console(error=True)
    if not (found.encoding or "").lower().startswith("utf"):
        text = text.replace("●", "*")
    # A reader of our standard error that has left is no reason to fail.
    with contextlib.suppress(BrokenPipeError, ValueError):
        found.print(Text(text, style=style), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output, as programs read it."""
    from magnetar.operator.plugin.views import plain

    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def confirm(what: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, `--yes` is the only way. Ends the command unless the answer is yes."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingError(f"{what} Nobody can be asked here: give --yes")
    try:
        with _interruptible():
            agreed = typer.confirm(f"{what} Go on?", err=True)
    except typer.Abort as error:
        typer.echo(err=True)
        note("Nothing was changed.")
        code = EXIT_INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else EXIT_FAILED
        raise typer.Exit(code) from None
    if not agreed:
        note("Nothing was changed.")
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While a question is asked the loop stands still: it would hear of signals only after the answer."""
    before = [(one, signal.signal(one, signal.default_int_handler)) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)
