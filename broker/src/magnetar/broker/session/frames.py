"""The frames that come per message: SEND, ACK and FLOW.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from magnetar.broker.session.acknowledge import ConsumerRequests
from magnetar.broker.session.publish import Publishes
from magnetar.wire.pulsar.command import TYPE_ACK, TYPE_FLOW, TYPE_SEND, command_type


class MessageFrames:
    """Serves what the producers and consumers of one connection send."""

    def __init__(self, publishes: Publishes, requests: ConsumerRequests) -> None:
        self._publishes: Publishes = publishes
        self._requests: ConsumerRequests = requests

    def serve(self, buffer: bytes, bounds: list[int], first: int) -> int:
        """Serve the frames from `first` (an index in `bounds`) up to the next control command.

        Returns the index of the frame that is next, `len(bounds)` when there is none; inverted (`~index`) when that is
        an ACK which others go before."""
        publishes, requests = self._publishes, self._requests
        index = first
        count = len(bounds)
        while index < count:
            start = bounds[index]
            end = bounds[index + 1]
            kind = command_type(buffer, start)
            if kind == TYPE_SEND:
                publishes.send(buffer, start, end)
            elif kind == TYPE_ACK:
                if not requests.acknowledge(buffer, start, end):
                    return ~index
            elif kind == TYPE_FLOW:
                requests.flow(buffer, start, end)
            else:
                break
            index += 2
        return index
