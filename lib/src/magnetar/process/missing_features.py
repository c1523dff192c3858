"""Tells whoever asks by a setting for a feature that is not there. Each has its own line: among dozens of names without
effect nobody would see that it is the one which counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.core.settings_file import GivenSettings

logger: Final = logging.getLogger(__name__)

OFF: Final = ("false", "no", "off", "0", "-1")


@dataclass(frozen=True, slots=True)
class MissingFeature:
    """What a setting asks for."""

    feature: str
    """In words: `there is no …`."""
    unasked: tuple[str, ...] = OFF
    """Values that do not ask for it, in small letters; an empty one never does. A class is named by its last part."""


def tell_missing(given: GivenSettings, missing: Mapping[str, MissingFeature]) -> frozenset[str]:
    """A line in the log for each feature that was asked for and is not there. Returns the names; those of settings that
    have an effect by now are none of them."""
    asked = []
    for name in given.without_effect():
        feature, value = missing.get(name), given.text_unused(name) or ""
        if feature is not None and value.lower().rpartition(".")[2] not in feature.unasked:
            logger.error("%s asks for what is not there: no %s", given.told(name), feature.feature)
            asked.append(name)
    return frozenset(asked)
