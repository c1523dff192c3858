"""Runs one service (a bookie, a broker, AutoRecovery) as a process of its own."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

import uvloop
from magnetar.core.crashes import CRASHES
from magnetar.core.errors import MagnetarError, SettingError, SettingErrors
from magnetar.core.exit_codes import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from magnetar.core.settings_file import GivenSettings
from magnetar.metadata.store import StoreUnavailable
from magnetar.net.descriptors import raise_limit
from magnetar.process.console import show_error, write_lines
from magnetar.process.missing_features import MissingFeature, tell_missing
from magnetar.process.serving import (
    STOP_SECONDS_MAX,
    Closable,
    prepare,
    serve_until_told,
)
from magnetar.process.supervision.end_with_supervisor import end_with_supervisor
from magnetar.process.supervision.told_settings import told_settings

logger: Final = logging.getLogger(__name__)

S = TypeVar("S", bound=Closable)
T = TypeVar("T")

TRY_AGAIN = "Run again with --log-level debug for more."
CHECK_THE_STORE = "Check the URL of the metadata store in the settings, and that its servers run."


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """Where a process takes its settings from; what stands further down wins."""

    file: Path | None
    environment: dict[str, str]
    assignments: list[str]
    """Settings that --set gave, each as `name=value`."""
    options: dict[str, tuple[str, str]]
    """By Apache's name: the value and the option that gave it."""

    def read(self, known: frozenset[str], ignored: Mapping[str, str]) -> GivenSettings:
        """Read all settings; there may be no others than those that are known, or ignored. `SettingError`."""
        given = GivenSettings(known, ignored)
        self.add_to(given)
        return given

    def add_to(self, given: GivenSettings) -> None:
        """Add all settings to those that were given. `SettingError`."""
        if self.file is not None:
            given.add_file(self.file)
        given.add_environment(self.environment)
        for assignment in self.assignments:
            name, equals, value = assignment.partition("=")
            if not equals or not name.strip():
                given.problem(f"--set {assignment}: it must be NAME=VALUE")
            else:
                given.add(name.strip(), value, f"--set {name.strip()}")
        for name, (value, option) in self.options.items():
            given.add(name, value, option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Generic[T, S]):
    """One kind of process."""

    name: str
    known: Callable[[], frozenset[str]]
    """The names of all settings that there are."""
    ignored: Callable[[], Mapping[str, str]]
    """Names of settings that other versions have, and why they are passed over."""
    missing: Callable[[], Mapping[str, MissingFeature]]
    """By the settings that ask for them."""
    settings: Callable[[GivenSettings], T]
    start: Callable[[T], Coroutine[None, None, S]]
    describe: Callable[[S], str]
    """What the ready line says, such as where it listens."""
    stop_seconds_max: Callable[[T], float] = lambda _: STOP_SECONDS_MAX
    """How long a clean stop may take."""
    exit_code: Callable[[MagnetarError], int] = lambda _: EXIT_FAILED
    """What an error that ends it is told as to whoever started the process."""
    hint: Callable[[MagnetarError], str] = lambda _: TRY_AGAIN
    """What to do about such an error, in a line of its own; empty where its text says it."""


def run_service(service: Service[T, S], sources: SettingSources, *, check_only: bool, log_level: str) -> int:
    """Read the settings, serve until told to stop. Returns the exit code.

    Once it serves, one line on standard output says so: `<name> ready: <where>`. With `check_only` the settings are
    read and nothing is started."""
    prepare(log_level)
    end_with_supervisor()
    sources = replace(sources, assignments=[*told_settings(), *sources.assignments])
    given = GivenSettings(service.known(), service.ignored())
    try:
        with given.gathering():
            sources.add_to(given)
            settings = service.settings(given)
    except SettingError as error:
        show_setting_errors(error)
        return EXIT_USAGE
    tell_about(given, service.missing())
    if check_only:
        say(f"{service.name}: the settings are valid")
        return EXIT_STOPPED
    # Not before: a check beside a running server, in its container, is none of the server's lives.
    CRASHES.record_where_told()
    raise_limit()
    try:
        uvloop.run(_serve(service, settings))
    except TimeoutError:
        seconds = service.stop_seconds_max(settings)
        show_error(f"Not stopped within {seconds:g} s.", "Everything acknowledged is in the journal.")
        return EXIT_FAILED
    except OSError as error:
        show_error(*explain_os_error(error))
        return EXIT_FAILED
    except SettingError as error:
        show_error(str(error), "Correct the setting and start again.")
        return EXIT_USAGE
    except MagnetarError as error:
        logger.debug("%s cannot run", service.name, exc_info=error)
        show_error(*explain_error(error, service.hint(error)))
        return service.exit_code(error)
    return EXIT_STOPPED


async def _serve(service: Service[T, S], settings: T) -> None:
    await serve_until_told(
        lambda: service.start(settings),
        lambda started: say(f"{service.name} ready: {service.describe(started)}"),
        lambda: logger.info("%s stops", service.name),
        service.stop_seconds_max(settings),
    )
    logger.info("%s has stopped", service.name)


def show_setting_errors(error: SettingError) -> None:
    """What is wrong with settings, all of it, and what to do."""
    *others, last = error.problems if isinstance(error, SettingErrors) else (str(error),)
    for problem in others:
        show_error(problem, "")
    what = f"Correct these {len(others) + 1} settings" if others else "Correct the setting"
    show_error(last, f"{what}; --check looks at all of them without starting.")


def tell_about(given: GivenSettings, missing: Mapping[str, MissingFeature]) -> None:
    """A line about each setting of other versions and each feature that is missing, one about the other settings
    without effect, and one about those that a file gives twice."""
    for line in given.passed_over.values():
        logger.warning("%s", line)
    asked = tell_missing(given, missing)
    without_effect = [name for name in given.without_effect() if name not in asked]
    if without_effect:
        logger.warning("settings without effect here: %s", ", ".join(without_effect))
    if given.repeated:
        logger.warning("settings given more than once, the last one counts: %s", ", ".join(given.repeated))


def say(line: str) -> None:
    """One line on standard output, for people and for programs that wait for it."""
    write_lines(sys.stdout, line)


def explain_error(error: MagnetarError, hint: str) -> tuple[str, str]:
    """What ended a process, in words, and what to do about it."""
    if isinstance(error, StoreUnavailable):
        return f"The metadata store does not answer: {error}", CHECK_THE_STORE
    return f"{type(error).__name__}: {error}", hint


def explain_os_error(error: OSError) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return str(error), "The port is taken: stop the other program, or choose another port."
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error), "Check listeningInterface and bindAddress."
    if error.errno == errno.EADDRNOTAVAIL:
        return str(error), "The address is none of this machine's: check listeningInterface and bindAddress."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Not allowed: {error}", "Choose directories and ports that this user may use."
    if error.errno == errno.EBUSY:
        return error.strerror or str(error), "Stop that one, or choose other directories."
    if error.errno == errno.EISDIR:
        return f"A directory stands where a file should: {error}", "Put the file back that was there."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"The disk is full: {error}", "Free some space."
    return str(error), TRY_AGAIN
