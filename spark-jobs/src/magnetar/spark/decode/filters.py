"""Which messages are wanted: decided for entries before they are unpacked, for rows before values are decoded."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.message_keys import KeyType
from magnetar.spark.options.pushdown import MessageFilters

_TIME_MS_MIN: Final = 0
_TIME_MS_MAX: Final = 2**63 - 1
"""Beyond every time that a column holds."""


class MessageScreen:
    """`MessageFilters` in the form that screens many messages; those about topics and partitions are not its."""

    def __init__(self, filters: MessageFilters, key_type: KeyType = "text") -> None:
        self.by_publish_time: Final = _bounded(filters.publish_time_ms_min, filters.publish_time_ms_max)
        self.by_event_time: Final = _bounded(filters.event_time_ms_min, filters.event_time_ms_max)
        self.by_key: Final = filters.keys is not None
        self.key_type: Final = key_type
        self.publish_time_ms_min: Final = _low(filters.publish_time_ms_min)
        self.publish_time_ms_max: Final = _high(filters.publish_time_ms_max)
        self._event_time_ms_min = max(1, _low(filters.event_time_ms_min))
        """A message without an event time, which is one of 0, fits no bound."""
        self._event_time_ms_max = _high(filters.event_time_ms_max)
        self._keys = pa.array(sorted(filters.keys or ()), pa.binary())

    def fitting_event_times(self, event_times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Per message; 0 is none."""
        low, high = self._event_time_ms_min, self._event_time_ms_max
        fitting: npt.NDArray[np.bool_] = (event_times_ms >= low) & (event_times_ms <= high)
        return fitting

    def fitting_keys(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Per message, of keys as the table shows them; null is none, which fits no set of keys."""
        fitting: npt.NDArray[np.bool_] = pc.is_in(keys.cast(pa.binary()), value_set=self._keys).to_numpy(
            zero_copy_only=False
        )
        return fitting


def _bounded(low: int | None, high: int | None) -> bool:
    return low is not None or high is not None


def _low(bound: int | None) -> int:
    return _TIME_MS_MIN if bound is None else min(bound, _TIME_MS_MAX)


def _high(bound: int | None) -> int:
    return _TIME_MS_MAX if bound is None else max(-1, min(bound, _TIME_MS_MAX))
