"""A process that a supervisor started ends with it, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from magnetar.core.errors import Misuse

SUPERVISOR_VARIABLE: Final = "MAGNETAR_SUPERVISOR_PID"
"""The environment variable in which a supervisor tells its processes its process id."""

PR_SET_PDEATHSIG: Final = 1
"""prctl(2): the signal that this process gets when its parent's thread that started it ends."""


def has_supervisor() -> bool:
    """Whether a supervisor has started this process; to be asked before `end_with_supervisor`."""
    return SUPERVISOR_VARIABLE in os.environ


def end_with_supervisor() -> None:
    """Be stopped cleanly, by SIGTERM, when the supervisor is gone; nothing where there is none. Linux alone has this:
    elsewhere a process outlives a supervisor that is killed."""
    told = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if not told:
        return
    if not told.isdigit():
        raise Misuse(f"{SUPERVISOR_VARIABLE} is {told!r}: it is set by a supervisor for its own processes alone")
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(told):
        # It ended before it could be waited for.
        signal.raise_signal(signal.SIGTERM)
