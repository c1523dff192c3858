"""Which offloader a setting or a policy means."""

from __future__ import annotations

import os
from collections.abc import Mapping

from magnetar.tiered.api import Offloader
from magnetar.tiered.assumed_role import AssumedRole
from magnetar.tiered.file_offloader import DRIVER as FILE_DRIVER
from magnetar.tiered.file_offloader import FileOffloader
from magnetar.tiered.object_offloader import ObjectOffloader
from magnetar.tiered.object_store import ObjectStore
from magnetar.tiered.s3_store import S3ObjectStore
from magnetar.tiered.settings import StorePlace, s3_settings


def make_offloader(properties: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Offloader:
    """The offloader that these settings describe, by Apache's names: `managedLedgerOffloadDriver`, `…Bucket`,
    `…Region`, `…ServiceEndpoint`, `…MaxBlockSizeInBytes`, `…ReadBufferSizeInBytes`, `…PrefetchRounds`, each also as
    `s3ManagedLedgerOffload…`, and `s3ManagedLedgerOffloadCredentialId`, `…CredentialSecret`, `…Role`,
    `…RoleSessionName`; for the driver `filesystem`, `fileSystemURI`. Other names are passed over. No connection is
    made. Must be called on the loop. Raises `SettingError`."""
    if (properties.get("managedLedgerOffloadDriver") or "").lower() == FILE_DRIVER:
        return FileOffloader(properties.get("fileSystemURI") or "")
    return ObjectOffloader(s3_settings(properties, environment), open_s3_store)


def open_s3_store(place: StorePlace) -> ObjectStore:
    """A bucket with the place's own credentials, else those of its role, else what the environment offers."""
    role = None
    if place.credentials is None and place.role:
        role = AssumedRole(place.role, place.role_session_name, place.region)
    return S3ObjectStore(place, role)
