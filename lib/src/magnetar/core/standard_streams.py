"""Standard input, output and error of a process that was started without them."""

from __future__ import annotations

import os
from typing import Final

LAST_STANDARD: Final = 2
"""The file descriptor of standard error, the last of the standard streams."""


def fill_standard_streams() -> None:
    """Open the null device where one of them is closed (`>&-`). Call this before anything else is opened.

    The next file or connection would get its number. What libraries print would go there, into a journal for
    instance, and libuv ends the process when it is to close such a number."""
    descriptor = 0
    while descriptor <= LAST_STANDARD:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor <= LAST_STANDARD:
            # As those are that a process gets from its parent.
            os.set_inheritable(descriptor, True)
    os.close(descriptor)
