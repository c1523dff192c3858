"""Refuses to start without a protection that the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.core.settings_file import GivenSettings


def refuse_protection(given: GivenSettings, names: Sequence[str]) -> None:
    """A problem when one of these settings is given and not switched off: who relies on a lock must not be left
    with an open door and a line in the log."""
    for name in names:
        value = given.text(name)
        if value is not None and value.lower() not in ("false", "no", "off"):
            given.problem(
                f"{name}={value} asks for a protection that Magnetar does not have yet; remove it only if the network "
                "around this process protects it instead"
            )
