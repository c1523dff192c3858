"""Kubernetes' quantities: numbers of bytes and of processors as people write them, such as 10Gi, 500m, 2."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from magnetar.core.errors import Misuse

PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
"""Without sign and exponent, which nobody writes for a size."""

BYTES_MAX: Final = 2**63 - 1
"""What Kubernetes computes with (apimachinery: resource.Quantity, int64Amount)."""

_CHARACTERS_MAX: Final = 64
"""Characters of a quantity: far more than a number that means anything has."""

_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}

_PARTS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")


def parse_quantity(written: str | int) -> Decimal:
    """The number that is meant. Raises `Misuse` for what is none."""
    text = str(written).strip()
    found = _PARTS.fullmatch(text) if len(text) <= _CHARACTERS_MAX else None
    if found is None or found[2] not in _SUFFIXES:
        shown = text[:_CHARACTERS_MAX] if isinstance(written, str) else written
        raise Misuse(f"{shown!r} is not a quantity such as 10Gi, 500m or 2")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def size_bytes(written: str | int) -> int:
    """A number of bytes; parts of a byte count as one. Raises `Misuse` for what is none, or more than Kubernetes
    counts."""
    size = parse_quantity(written)
    if size > BYTES_MAX:
        raise Misuse(f"{written!r} is more than the {BYTES_MAX} bytes that Kubernetes can count")
    return math.ceil(size)


def format_bytes(size_bytes: int) -> str:
    """The shortest exact binary quantity: 10Gi, 1536Mi, 1000."""
    for power, suffix in reversed(list(enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1))):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{suffix}"
    return str(size_bytes)
