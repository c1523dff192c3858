"""Sessions of Spark whose Python workers connect back in time on a busy machine (see `early_workers/sitecustomize.py`).

The JVM starts the workers, with the environment that it was started with. All sessions of a test process share one JVM:
whichever test module makes the first session has to make it so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

EARLY: Final = Path(__file__).parent.parent / "early_workers"


@contextmanager
def early_workers() -> Iterator[None]:
    """While a session is made."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EARLY), *([before] if before else [])])
    os.environ |= {"PYSPARK_PYTHON": str(EARLY / "python"), "EARLY_WORKER_PYTHON": sys.executable}
    try:
        yield
    finally:
        # The JVM has them now.
        os.environ["PYSPARK_PYTHON"] = os.environ.pop("EARLY_WORKER_PYTHON")
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def check_early(session: Any) -> None:
    """Assert that the JVM was started so: on a busy machine a query would fail otherwise, now and then."""
    assert session._jvm.System.getenv("EARLY_WORKER_PYTHON"), "another module has made the JVM without `early_workers`"
