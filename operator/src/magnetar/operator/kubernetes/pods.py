"""What is asked of pods besides their objects: logs, and connections to ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which lines of which container."""

    namespace: str
    pod: str
    container: str
    follow: bool = False
    previous: bool = False
    """Whether to read the log of the container before the last restart."""
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str = ""
    """RFC 3339; lines of that second may come again."""
    size_bytes_max: int | None = None

    def parameters(self) -> dict[str, str]:
        """The query of the request for a log. Each line comes with its time."""
        found = {"container": self.container, "timestamps": "true"}
        numbers = {
            "tailLines": self.tail_lines,
            "sinceSeconds": self.since_seconds,
            "limitBytes": self.size_bytes_max,
        }
        found |= {name: str(number) for name, number in numbers.items() if number is not None}
        if self.since_time:
            found["sinceTime"] = self.since_time
        return found | {name: "true" for name in ("follow", "previous") if getattr(self, name)}


class PodStream(Protocol):
    """One connection to a port of a pod."""

    async def send(self, data: bytes) -> None:
        """Hand bytes over. Waits while the pod does not take them. `Unavailable`."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; none: the pod has closed. `PodPortRefused`, `Unavailable`."""
        ...
