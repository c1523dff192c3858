"""The command `magnetar`."""

from __future__ import annotations

import gc
import signal

from magnetar.core.standard_streams import fill_standard_streams


def main() -> None:
    """Run the command line; leaves the interpreter with its exit code."""
    fill_standard_streams()
    # While modules load nothing becomes garbage, and looking for it is a tenth of the time. `run` turns it on again.
    gc.disable()
    # Ctrl-C in the middle of an import ends us without a traceback; the event loop takes the signal over later.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from magnetar.cli.command_line import application

    application()


if __name__ == "__main__":
    main()
