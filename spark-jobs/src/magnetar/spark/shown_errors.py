"""Errors as Spark's users get to see them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.core.errors import MagnetarError, Misuse

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""What Spark's own setting `…hideTraceback.enabled` makes of itself in workers; a worker ends with its error, so that
what is set here concerns one error alone."""


@contextmanager
def shown_plainly() -> Iterator[None]:
    """What is raised on purpose comes without its Python traceback: Spark would put the message below it. Bugs keep
    theirs."""
    try:
        yield
    except Misuse:
        raise
    except MagnetarError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise
