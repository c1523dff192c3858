"""Makes `e2e` importable when the tests are run from anywhere; told to end, they leave no process behind."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))


def pytest_configure() -> None:
    """SIGTERM, such as of `make`, ends what the tests have started. After Ctrl-C their fixtures do so."""
    from e2e import processes

    processes.leave_nothing_behind([signal.SIGTERM], adopting=False)
