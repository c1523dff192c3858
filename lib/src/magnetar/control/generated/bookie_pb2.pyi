# mypy: disable-error-code="type-arg, valid-type"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrainStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STEP_UNSPECIFIED: _ClassVar[DrainStep]
    DRAIN_STEP_NONE: _ClassVar[DrainStep]
    DRAIN_STEP_READ_ONLY: _ClassVar[DrainStep]
    DRAIN_STEP_REPLICATE: _ClassVar[DrainStep]
    DRAIN_STEP_VERIFY: _ClassVar[DrainStep]
    DRAIN_STEP_REMOVE_COOKIE: _ClassVar[DrainStep]
    DRAIN_STEP_DONE: _ClassVar[DrainStep]
DRAIN_STEP_UNSPECIFIED: DrainStep
DRAIN_STEP_NONE: DrainStep
DRAIN_STEP_READ_ONLY: DrainStep
DRAIN_STEP_REPLICATE: DrainStep
DRAIN_STEP_VERIFY: DrainStep
DRAIN_STEP_REMOVE_COOKIE: DrainStep
DRAIN_STEP_DONE: DrainStep

class GetStorageStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StorageState(_message.Message):
    __slots__ = ("bookie_id", "running", "shutting_down", "read_only", "high_priority_writes", "read_only_reasons", "read_only_manual", "read_only_forced", "ledgers", "entries", "write_cache_bytes", "write_cache_bytes_max", "journal_queue_bytes", "entry_log_bytes", "directories", "journal_marks", "collections", "limbo")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SHUTTING_DOWN_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    HIGH_PRIORITY_WRITES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_REASONS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_MANUAL_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FORCED_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    WRITE_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITE_CACHE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_MARKS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    running: bool
    shutting_down: bool
    read_only: bool
    high_priority_writes: bool
    read_only_reasons: _containers.RepeatedScalarFieldContainer[str]
    read_only_manual: bool
    read_only_forced: bool
    ledgers: int
    entries: int
    write_cache_bytes: int
    write_cache_bytes_max: int
    journal_queue_bytes: int
    entry_log_bytes: int
    directories: _containers.RepeatedCompositeFieldContainer[Directory]
    journal_marks: _containers.RepeatedCompositeFieldContainer[JournalMark]
    collections: _containers.RepeatedCompositeFieldContainer[Collection]
    limbo: Limbo
    def __init__(self, bookie_id: _Optional[str] = ..., running: _Optional[bool] = ..., shutting_down: _Optional[bool] = ..., read_only: _Optional[bool] = ..., high_priority_writes: _Optional[bool] = ..., read_only_reasons: _Optional[_Iterable[str]] = ..., read_only_manual: _Optional[bool] = ..., read_only_forced: _Optional[bool] = ..., ledgers: _Optional[int] = ..., entries: _Optional[int] = ..., write_cache_bytes: _Optional[int] = ..., write_cache_bytes_max: _Optional[int] = ..., journal_queue_bytes: _Optional[int] = ..., entry_log_bytes: _Optional[int] = ..., directories: _Optional[_Iterable[_Union[Directory, _Mapping]]] = ..., journal_marks: _Optional[_Iterable[_Union[JournalMark, _Mapping]]] = ..., collections: _Optional[_Iterable[_Union[Collection, _Mapping]]] = ..., limbo: _Optional[_Union[Limbo, _Mapping]] = ...) -> None: ...

class Limbo(_message.Message):
    __slots__ = ("in_limbo", "since_ms", "ledgers", "ledgers_total", "ledgers_unhealed", "entries_lost", "entries_fetched", "problems", "damage")
    IN_LIMBO_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_UNHEALED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_LOST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FETCHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    in_limbo: bool
    since_ms: int
    ledgers: int
    ledgers_total: int
    ledgers_unhealed: int
    entries_lost: int
    entries_fetched: int
    problems: _containers.RepeatedCompositeFieldContainer[LimboProblem]
    damage: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, in_limbo: _Optional[bool] = ..., since_ms: _Optional[int] = ..., ledgers: _Optional[int] = ..., ledgers_total: _Optional[int] = ..., ledgers_unhealed: _Optional[int] = ..., entries_lost: _Optional[int] = ..., entries_fetched: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[LimboProblem, _Mapping]]] = ..., damage: _Optional[_Iterable[str]] = ...) -> None: ...

class LimboProblem(_message.Message):
    __slots__ = ("ledger_id", "reason")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    reason: str
    def __init__(self, ledger_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Directory(_message.Message):
    __slots__ = ("directory", "kind", "total_bytes", "free_bytes", "writable")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    directory: str
    kind: str
    total_bytes: int
    free_bytes: int
    writable: bool
    def __init__(self, directory: _Optional[str] = ..., kind: _Optional[str] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., writable: _Optional[bool] = ...) -> None: ...

class JournalMark(_message.Message):
    __slots__ = ("file_id", "offset")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    file_id: int
    offset: int
    def __init__(self, file_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Collection(_message.Message):
    __slots__ = ("directory", "force_compacting", "major_compacting", "minor_compacting", "last_major_compaction_ms", "last_minor_compaction_ms", "major_compactions", "minor_compactions", "major_suspended", "minor_suspended")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    FORCE_COMPACTING_FIELD_NUMBER: _ClassVar[int]
    MAJOR_COMPACTING_FIELD_NUMBER: _ClassVar[int]
    MINOR_COMPACTING_FIELD_NUMBER: _ClassVar[int]
    LAST_MAJOR_COMPACTION_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MINOR_COMPACTION_MS_FIELD_NUMBER: _ClassVar[int]
    MAJOR_COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    MINOR_COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    MAJOR_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    MINOR_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    directory: str
    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_compaction_ms: int
    last_minor_compaction_ms: int
    major_compactions: int
    minor_compactions: int
    major_suspended: bool
    minor_suspended: bool
    def __init__(self, directory: _Optional[str] = ..., force_compacting: _Optional[bool] = ..., major_compacting: _Optional[bool] = ..., minor_compacting: _Optional[bool] = ..., last_major_compaction_ms: _Optional[int] = ..., last_minor_compaction_ms: _Optional[int] = ..., major_compactions: _Optional[int] = ..., minor_compactions: _Optional[int] = ..., major_suspended: _Optional[bool] = ..., minor_suspended: _Optional[bool] = ...) -> None: ...

class SetReadOnlyRequest(_message.Message):
    __slots__ = ("read_only",)
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    read_only: bool
    def __init__(self, read_only: _Optional[bool] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("bookie_id", "step", "ledgers_total", "ledgers_left", "bytes_copied", "bytes_per_second", "blockers")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    step: DrainStep
    ledgers_total: int
    ledgers_left: int
    bytes_copied: int
    bytes_per_second: float
    blockers: _containers.RepeatedCompositeFieldContainer[DrainBlocker]
    def __init__(self, bookie_id: _Optional[str] = ..., step: _Optional[_Union[DrainStep, str]] = ..., ledgers_total: _Optional[int] = ..., ledgers_left: _Optional[int] = ..., bytes_copied: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., blockers: _Optional[_Iterable[_Union[DrainBlocker, _Mapping]]] = ...) -> None: ...

class DrainBlocker(_message.Message):
    __slots__ = ("ledger_id", "reason")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    reason: str
    def __init__(self, ledger_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StartDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchDrainRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class TriggerGarbageCollectionRequest(_message.Message):
    __slots__ = ("force_major", "force_minor")
    FORCE_MAJOR_FIELD_NUMBER: _ClassVar[int]
    FORCE_MINOR_FIELD_NUMBER: _ClassVar[int]
    force_major: bool
    force_minor: bool
    def __init__(self, force_major: _Optional[bool] = ..., force_minor: _Optional[bool] = ...) -> None: ...

class TriggerGarbageCollectionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLedgersRequest(_message.Message):
    __slots__ = ("after_ledger_id", "page_size", "count_max")
    AFTER_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    after_ledger_id: int
    page_size: int
    count_max: int
    def __init__(self, after_ledger_id: _Optional[int] = ..., page_size: _Optional[int] = ..., count_max: _Optional[int] = ...) -> None: ...

class ListLedgersResponse(_message.Message):
    __slots__ = ("ledgers",)
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[StoredLedger]
    def __init__(self, ledgers: _Optional[_Iterable[_Union[StoredLedger, _Mapping]]] = ...) -> None: ...

class StoredLedger(_message.Message):
    __slots__ = ("ledger_id", "fenced", "last_entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    fenced: bool
    last_entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., fenced: _Optional[bool] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class GetAutoRecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EnableAutoRecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DisableAutoRecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchAutoRecoveryRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class AutoRecovery(_message.Message):
    __slots__ = ("enabled", "auditor_bookie_id", "ledgers_left", "running_here", "is_auditor", "ledgers_done", "entries_copied", "bytes_copied", "bytes_per_second", "current_ledger_ids")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    AUDITOR_BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_HERE_FIELD_NUMBER: _ClassVar[int]
    IS_AUDITOR_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_DONE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_COPIED_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    auditor_bookie_id: str
    ledgers_left: int
    running_here: bool
    is_auditor: bool
    ledgers_done: int
    entries_copied: int
    bytes_copied: int
    bytes_per_second: float
    current_ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, enabled: _Optional[bool] = ..., auditor_bookie_id: _Optional[str] = ..., ledgers_left: _Optional[int] = ..., running_here: _Optional[bool] = ..., is_auditor: _Optional[bool] = ..., ledgers_done: _Optional[int] = ..., entries_copied: _Optional[int] = ..., bytes_copied: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., current_ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetLostBookieRequest(_message.Message):
    __slots__ = ("bookie_id",)
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    def __init__(self, bookie_id: _Optional[str] = ...) -> None: ...

class RetireLostBookieRequest(_message.Message):
    __slots__ = ("bookie_id",)
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    def __init__(self, bookie_id: _Optional[str] = ...) -> None: ...

class LostBookie(_message.Message):
    __slots__ = ("bookie_id", "registered", "has_cookie", "ledgers_left", "waits_for")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    HAS_COOKIE_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    registered: bool
    has_cookie: bool
    ledgers_left: int
    waits_for: str
    def __init__(self, bookie_id: _Optional[str] = ..., registered: _Optional[bool] = ..., has_cookie: _Optional[bool] = ..., ledgers_left: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...
