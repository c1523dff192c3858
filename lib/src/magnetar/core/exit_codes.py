"""The exit codes of every command."""

from __future__ import annotations

from typing import Final

EXIT_STOPPED: Final = 0
"""Told to stop, and stopped with everything written; of a command: done."""
EXIT_FAILED: Final = 1
"""Could not start, could not stop cleanly, or could not do what it should."""
EXIT_USAGE: Final = 2
"""A wrong option or a wrong setting."""
EXIT_EMPTY_VOLUME: Final = 3
"""A bookie that the cluster knows has lost the contents of a directory: there is no cookie and no data in it. The
others have to take its entries over before it may come back with empty directories."""
EXIT_WRONG_VOLUME: Final = 4
"""A directory has the cookie of another bookie or cluster, or of other directories, or a damaged one. What is in it
may be needed: nobody but a person should touch it."""
EXIT_RETIRED: Final = 5
"""The data is of a bookie that the cluster does not know any more: it was taken out. It does not come back unless its
directories are emptied."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C while a command worked, as shells number it."""
