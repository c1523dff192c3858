"""The file descriptors of a process: as many as it may have, and how many of them are for clients' connections.

A process that has none left can neither take a connection nor open a file, and its index and its entry logs need
files. So clients get what is left beside those, beside the connections with bookies, the metadata store and other
brokers, and beside HTTP.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger: Final = logging.getLogger(__name__)

LOW: Final = 16_384
"""Fewer are told: brokers and proxies of larger clusters have as many clients."""

RESERVED_SHARE: Final = 4
"""One file of so many that the process may have is not for clients."""

RESERVED_MIN: Final = 512
"""RocksDB and entry logs keep hundreds of files open at most, a broker some dozen connections to each bookie."""

RESERVED_MAX: Final = 8_192
"""Enough for any number of bookies, and for what the kernel hands over at once before anybody can be refused."""


SHARE_OF_HANDSHAKES: Final = 8
"""TLS handshakes that are not finished at a port take no more than this part of the files that the process may open.
They have places of its connections."""

HANDSHAKES_MIN: Final = 32
"""At one port, also where its connections have taken all other files."""

HANDSHAKES_MAX: Final = 1_024
"""Unfinished TLS handshakes at one port, at most: each holds some 40 KB."""


def raise_limit() -> int:
    """Let this process have as many as the system allows it; how many these are. Told in the log when they are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
    limit = open_files_max()
    if limit < LOW:
        logger.warning(
            "this process may have %d open files and takes at most %d connections of clients: raise the limit "
            "(ulimit -Hn, LimitNOFILE=) where there are more clients",
            *(limit, clients_max()),
        )
    return limit


def open_files_max() -> int:
    """How many this process may have now."""
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def clients_max(each: int = 1) -> int:
    """How many clients' connections fit, each of which takes so many descriptors."""
    limit = open_files_max()
    reserved = max(RESERVED_MIN, min(RESERVED_MAX, limit // RESERVED_SHARE))
    return max(1, (limit - reserved) // each)


def handshakes_max() -> int:
    """How many TLS handshakes may be under way at one port."""
    return max(HANDSHAKES_MIN, min(HANDSHAKES_MAX, open_files_max() // SHARE_OF_HANDSHAKES))
