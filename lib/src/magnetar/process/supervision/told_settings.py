"""The settings that a supervisor gives its processes: in their environment, which no other user may read. What stands
on a command line is everybody's to see, and a setting may be a secret."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

from magnetar.core.errors import Misuse

SETTINGS_VARIABLE: Final = "MAGNETAR_PROCESS_SETTINGS"
"""The environment variable: a JSON array of `NAME=VALUE`, of which the last of a name counts."""


def settings_environment(settings: Sequence[str]) -> dict[str, str]:
    """What a process has in its environment to be told these."""
    return {SETTINGS_VARIABLE: json.dumps(list(settings))}


def told_settings() -> list[str]:
    """What this process's supervisor has told it; nothing where there is none. They stay out of what this process
    starts itself."""
    told = os.environ.pop(SETTINGS_VARIABLE, "")
    if not told:
        return []
    try:
        settings = json.loads(told)
    except ValueError:
        settings = None
    if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
        raise Misuse(
            f"{SETTINGS_VARIABLE} is no array of settings: it is set by a supervisor for its own processes alone"
        )
    return settings
