"""Numbers as people read them, in messages and tables, and hosts as URLs have them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def human_bytes(count: float) -> str:
    """A number of bytes to three digits or so: `305 B`, `1.5 KiB`, `144 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def host_of_url(host: str) -> str:
    """A host as it stands in a URL: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
