"""Log lines: JSON for programs, text for people at a terminal."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from magnetar.core.log_lines import LineFormatter
from magnetar.core.log_rate import AlikeFilter
from magnetar.operator.settings import LogFormat, LogLevel
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

_FIELDS: Final = {"asctime": "time", "levelname": "level", "name": "logger"}

_UNTOLD: Final = (*RESERVED_ATTRS, "settings", "k8s_skip")
"""Attributes of log records that are not told; the last ones are kopf's own, among them all of its settings."""

_CHATTY: Final = {
    # Every handler that has run.
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
}


def set_up(wanted: LogFormat, level: LogLevel) -> None:
    """Everything goes to standard error; `auto`: text if that is a terminal."""
    text = wanted == "text" or (wanted == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    if text:
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        formatter = JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields=_FIELDS,
            reserved_attrs=_UNTOLD,
            # What JSON does not know must not lose a line.
            json_default=str,
        )
        formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
        formatter.default_msec_format = "%s.%03dZ"
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    handler.addFilter(AlikeFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    if level != "debug":
        for name, least in _CHATTY.items():
            logging.getLogger(name).setLevel(least)
