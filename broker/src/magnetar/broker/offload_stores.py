"""Makes what reaches the stores of offloaded ledgers, of the settings that policies give it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from magnetar.broker.policies.offload import FileStore
from magnetar.broker.settings.offload import OffloadSettings
from magnetar.tiered.api import Offloader
from magnetar.tiered.file_offloader import DRIVER as FILES
from magnetar.tiered.file_offloader import FileOffloader
from magnetar.tiered.settings import OffloadStoreSettings

if TYPE_CHECKING:
    from magnetar.tiered.object_offloader import ObjectOffloader
    from magnetar.tiered.object_store import ObjectStore
    from magnetar.tiered.settings import StorePlace


def offloader_of(store: Hashable) -> Offloader:
    """What reaches a store: one that speaks S3's protocol, or a folder."""
    if isinstance(store, FileStore):
        return FileOffloader(store.uri)
    assert isinstance(store, OffloadStoreSettings)
    kind, open_store = _s3_modules()
    return kind(store, open_store)


def _s3_modules() -> tuple[type[ObjectOffloader], Callable[[StorePlace], ObjectStore]]:
    """The library behind them is loaded by brokers that offload alone."""
    from magnetar.tiered.factory import open_s3_store
    from magnetar.tiered.object_offloader import ObjectOffloader

    return ObjectOffloader, open_s3_store


def load_for(settings: OffloadSettings) -> None:
    """What the broker's own store needs takes a while to load: before anybody waits."""
    if settings.driver and settings.driver.lower() != FILES:
        _s3_modules()
