"""What of tiered storage is in force for a topic, out of its own policies, its namespace's and the broker's settings.
Pure, but for the credentials that the driver `S3` takes from the environment.

Each member by itself, as in Pulsar (`OffloadPoliciesImpl.mergeConfiguration`): so a topic may name another bucket and
leave the driver to the namespace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.settings.offload import RUNS_AT_ONCE_MAX, OffloadSettings
from magnetar.core.errors import SettingError
from magnetar.core.setting import rows_of
from magnetar.tiered.file_offloader import DRIVER as FILES
from magnetar.tiered.file_offloader import FileOffloader
from magnetar.tiered.policy import OffloadPolicy, ReadFirst
from magnetar.tiered.settings import S3_DRIVERS, OffloadStoreSettings, s3_settings

THRESHOLD_BYTES: Final = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS: Final = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG: Final = "managedLedgerOffloadDeletionLagInMillis"
READ_FIRST: Final = "managedLedgerOffloadedReadPriority"
RUNS: Final = "managedLedgerOffloadMaxThreads"
DRIVER: Final = "managedLedgerOffloadDriver"

_NUMBER_MAX: Final = 2**63 - 1

_IN_POLICIES: Final = {
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": THRESHOLD_BYTES,
    "managedLedgerOffloadDeletionLagMs": DELETION_LAG,
    "managedLedgerDataReadPriority": READ_FIRST,
}
"""Settings whose names in policies are others (`OffloadPoliciesImpl.getCompatibleValue`)."""

_OLDER: Final = (
    (DELETION_LAG, "offload_deletion_lag_ms", None),
    (THRESHOLD_BYTES, "offload_threshold", -1),
    (THRESHOLD_SECONDS, "offload_threshold_in_seconds", -1),
)
"""Members of a namespace from before it had offload policies, and what they are when they are not set."""


def offload_policy(settings: OffloadSettings, namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> OffloadPolicy:
    """Of a topic. A store that cannot be used is none, and the policy says why."""
    found = merged(settings, namespace, topic)
    store, problem = None, ""
    if found.get(DRIVER):
        try:
            store = store_of(found)
        except SettingError as error:
            problem = str(error)
    seconds = _number(found, THRESHOLD_SECONDS, -1)
    lag_ms = _number(found, DELETION_LAG, settings.deletion_lag_ms)
    return OffloadPolicy(
        store=store,
        problem=problem,
        threshold_bytes=_number(found, THRESHOLD_BYTES, -1),
        threshold_ms=seconds * 1_000 if seconds >= 0 else -1,
        deletion_lag_ms=lag_ms,
        read_first=_read_first(found, settings.read_first),
        runs_max=min(max(1, _number(found, RUNS, settings.runs_max)), RUNS_AT_ONCE_MAX),
        on_load=settings.on_load,
    )


@dataclass(frozen=True, slots=True)
class FileStore:
    """A folder that ledgers are offloaded to."""

    uri: str


def store_of(values: Mapping[str, Any]) -> OffloadStoreSettings | FileStore:
    """The store that members of offload policies name. `SettingError`."""
    driver = str(values.get(DRIVER))
    if driver.lower() == FILES:
        uri = str(values.get("fileSystemURI") or "")
        FileOffloader(uri)  # It looks at the URI, and at nothing else.
        return FileStore(uri)
    if driver.lower() not in (known.lower() for known in S3_DRIVERS):
        raise SettingError(f"{DRIVER}={driver}: the drivers are {', '.join((*S3_DRIVERS, FILES))}")
    return s3_settings({key: str(value) for key, value in values.items() if value is not None}, os.environ)


def merged(settings: OffloadSettings, namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> dict[str, Any]:
    """The members of all three levels, the nearest one's each."""
    own = topic.get("offloadPolicies")
    of_namespace = namespace.get("offload_policies")
    found = of_broker(settings)
    for key, older, unset in _OLDER:
        if namespace.get(older, unset) != unset:
            found[key] = namespace[older]
    for level in (of_namespace, own):
        if isinstance(level, dict):
            found.update((key, value) for key, value in level.items() if value is not None)
    return found


def of_broker(settings: OffloadSettings) -> dict[str, Any]:
    """The broker's settings by the names that they have in policies."""
    return {_IN_POLICIES.get(row.name, row.name): getattr(settings, row.path) for row in rows_of(OffloadSettings)}


def _number(found: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = found.get(key)
    return value if type(value) is int and abs(value) <= _NUMBER_MAX else otherwise


def _read_first(found: Mapping[str, Any], otherwise: ReadFirst) -> ReadFirst:
    """Pulsar writes the word in capitals with underscores into the topic that policies are in."""
    value = found.get(READ_FIRST)
    try:
        return ReadFirst(value.lower().replace("_", "-")) if isinstance(value, str) else otherwise
    except ValueError:
        return otherwise
