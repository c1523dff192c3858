"""The frames that come per message: SEND, ACK and FLOW; and lookups, which come by the thousand when a broker is gone.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.session.acknowledge import ConsumerRequests
from magnetar.broker.session.command_limits import COMMAND_BYTES_MAX
from magnetar.broker.session.lookup import LookupCommands
from magnetar.broker.session.publish import Publishes
from magnetar.wire.pulsar.command import TYPE_ACK, TYPE_FLOW, TYPE_SEND, command_type
from magnetar.wire.pulsar.topic_requests import TYPE_LOOKUP

TURN_FLOWS_MAX: Final = 64
"""FLOWs of one connection that are served at a time: a read may bring fifteen thousand. Clients send one for each
consumer when half of its queue is empty."""


class MessageFrames:
    """Serves what the producers and consumers of one connection send."""

    def __init__(self, publishes: Publishes, requests: ConsumerRequests, lookups: LookupCommands) -> None:
        self._publishes: Publishes = publishes
        self._requests: ConsumerRequests = requests
        self._lookups: LookupCommands = lookups
        self.looked_up: int = 0
        """How many lookups the last call has answered."""
        self._flows_left: int = TURN_FLOWS_MAX

    def begin_turn(self) -> None:
        """Count FLOWs anew."""
        self._flows_left = TURN_FLOWS_MAX

    def serve(self, buffer: bytes, bounds: list[int], first: int, lookups_max: int) -> int:
        """Serve the frames from `first` (an index in `bounds`) up to the next control command. Of those, so many
        lookups at most are served, too, if memory is enough to answer them.

        Returns the index of the frame that is next, `len(bounds)` when there is none; inverted (`~index`) when that is
        an ACK or a FLOW which others go before."""
        publishes, requests = self._publishes, self._requests
        self.looked_up = 0
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
                if not self._flows_left:
                    return ~index
                self._flows_left -= 1
                requests.flow(buffer, start, end)
            elif kind == TYPE_LOOKUP and self.looked_up < lookups_max and end - start <= COMMAND_BYTES_MAX:
                if not self._lookups.answer_at_once(buffer, start, end):
                    break
                self.looked_up += 1
            else:
                break
            index += 2
        return index
