"""The exit codes of every command."""

from __future__ import annotations

from typing import Final

EXIT_STOPPED: Final = 0
"""Told to stop, and stopped with everything written; of a command: done."""
EXIT_FAILED: Final = 1
"""Could not start, could not stop cleanly, or could not do what it should."""
EXIT_USAGE: Final = 2
"""A wrong option or a wrong setting."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C while a command worked, as shells number it."""
