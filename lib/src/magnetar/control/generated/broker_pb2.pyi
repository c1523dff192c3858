# mypy: disable-error-code="type-arg, valid-type"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BrokerDrainStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BROKER_DRAIN_STEP_UNSPECIFIED: _ClassVar[BrokerDrainStep]
    BROKER_DRAIN_STEP_NONE: _ClassVar[BrokerDrainStep]
    BROKER_DRAIN_STEP_RUNNING: _ClassVar[BrokerDrainStep]
    BROKER_DRAIN_STEP_DONE: _ClassVar[BrokerDrainStep]
BROKER_DRAIN_STEP_UNSPECIFIED: BrokerDrainStep
BROKER_DRAIN_STEP_NONE: BrokerDrainStep
BROKER_DRAIN_STEP_RUNNING: BrokerDrainStep
BROKER_DRAIN_STEP_DONE: BrokerDrainStep

class GetLoadReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("broker_id", "registered", "leading", "leader_broker_id", "usages", "msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out", "topics", "producers", "consumers", "bundles", "started_ms", "version", "local_broker_data_json")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    LEADING_FIELD_NUMBER: _ClassVar[int]
    LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    MSG_RATE_IN_FIELD_NUMBER: _ClassVar[int]
    MSG_RATE_OUT_FIELD_NUMBER: _ClassVar[int]
    MSG_THROUGHPUT_IN_FIELD_NUMBER: _ClassVar[int]
    MSG_THROUGHPUT_OUT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_BROKER_DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    registered: bool
    leading: bool
    leader_broker_id: str
    usages: ResourceUsages
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    topics: int
    producers: int
    consumers: int
    bundles: int
    started_ms: int
    version: str
    local_broker_data_json: str
    def __init__(self, broker_id: _Optional[str] = ..., registered: _Optional[bool] = ..., leading: _Optional[bool] = ..., leader_broker_id: _Optional[str] = ..., usages: _Optional[_Union[ResourceUsages, _Mapping]] = ..., msg_rate_in: _Optional[float] = ..., msg_rate_out: _Optional[float] = ..., msg_throughput_in: _Optional[float] = ..., msg_throughput_out: _Optional[float] = ..., topics: _Optional[int] = ..., producers: _Optional[int] = ..., consumers: _Optional[int] = ..., bundles: _Optional[int] = ..., started_ms: _Optional[int] = ..., version: _Optional[str] = ..., local_broker_data_json: _Optional[str] = ...) -> None: ...

class ResourceUsages(_message.Message):
    __slots__ = ("cpu", "memory", "bandwidth_in", "bandwidth_out")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_IN_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_OUT_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    memory: float
    bandwidth_in: float
    bandwidth_out: float
    def __init__(self, cpu: _Optional[float] = ..., memory: _Optional[float] = ..., bandwidth_in: _Optional[float] = ..., bandwidth_out: _Optional[float] = ...) -> None: ...

class ListBundlesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBundlesResponse(_message.Message):
    __slots__ = ("bundles",)
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[OwnedBundle]
    def __init__(self, bundles: _Optional[_Iterable[_Union[OwnedBundle, _Mapping]]] = ...) -> None: ...

class OwnedBundle(_message.Message):
    __slots__ = ("bundle", "state", "topics", "producers", "consumers", "msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    MSG_RATE_IN_FIELD_NUMBER: _ClassVar[int]
    MSG_RATE_OUT_FIELD_NUMBER: _ClassVar[int]
    MSG_THROUGHPUT_IN_FIELD_NUMBER: _ClassVar[int]
    MSG_THROUGHPUT_OUT_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    state: str
    topics: int
    producers: int
    consumers: int
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    def __init__(self, bundle: _Optional[str] = ..., state: _Optional[str] = ..., topics: _Optional[int] = ..., producers: _Optional[int] = ..., consumers: _Optional[int] = ..., msg_rate_in: _Optional[float] = ..., msg_rate_out: _Optional[float] = ..., msg_throughput_in: _Optional[float] = ..., msg_throughput_out: _Optional[float] = ...) -> None: ...

class SplitBundleRequest(_message.Message):
    __slots__ = ("bundle", "algorithm", "boundaries", "unload")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    algorithm: str
    boundaries: _containers.RepeatedScalarFieldContainer[int]
    unload: bool
    def __init__(self, bundle: _Optional[str] = ..., algorithm: _Optional[str] = ..., boundaries: _Optional[_Iterable[int]] = ..., unload: _Optional[bool] = ...) -> None: ...

class SplitBundleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadBundleRequest(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    def __init__(self, bundle: _Optional[str] = ...) -> None: ...

class UnloadBundleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransferBundleRequest(_message.Message):
    __slots__ = ("bundle", "destination_broker_id")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    destination_broker_id: str
    def __init__(self, bundle: _Optional[str] = ..., destination_broker_id: _Optional[str] = ...) -> None: ...

class TransferBundleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerDrain(_message.Message):
    __slots__ = ("broker_id", "step", "bundles_total", "bundles_left", "blockers")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_LEFT_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    step: BrokerDrainStep
    bundles_total: int
    bundles_left: int
    blockers: _containers.RepeatedCompositeFieldContainer[BrokerDrainBlocker]
    def __init__(self, broker_id: _Optional[str] = ..., step: _Optional[_Union[BrokerDrainStep, str]] = ..., bundles_total: _Optional[int] = ..., bundles_left: _Optional[int] = ..., blockers: _Optional[_Iterable[_Union[BrokerDrainBlocker, _Mapping]]] = ...) -> None: ...

class BrokerDrainBlocker(_message.Message):
    __slots__ = ("bundle", "reason")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    reason: str
    def __init__(self, bundle: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class GetBrokerDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelBrokerDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDecisionsRequest(_message.Message):
    __slots__ = ("count_max",)
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    count_max: int
    def __init__(self, count_max: _Optional[int] = ...) -> None: ...

class Decisions(_message.Message):
    __slots__ = ("decisions", "placements", "outlook")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[BalanceDecision]
    placements: _containers.RepeatedCompositeFieldContainer[BalanceDecision]
    outlook: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decisions: _Optional[_Iterable[_Union[BalanceDecision, _Mapping]]] = ..., placements: _Optional[_Iterable[_Union[BalanceDecision, _Mapping]]] = ..., outlook: _Optional[_Iterable[str]] = ...) -> None: ...

class BalanceDecision(_message.Message):
    __slots__ = ("kind", "bundle", "broker_id", "destination_broker_id", "reason", "decided_ms", "outcome", "error", "took_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    bundle: str
    broker_id: str
    destination_broker_id: str
    reason: str
    decided_ms: int
    outcome: str
    error: str
    took_ms: int
    def __init__(self, kind: _Optional[str] = ..., bundle: _Optional[str] = ..., broker_id: _Optional[str] = ..., destination_broker_id: _Optional[str] = ..., reason: _Optional[str] = ..., decided_ms: _Optional[int] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., took_ms: _Optional[int] = ...) -> None: ...

class SetDriverRequest(_message.Message):
    __slots__ = ("driver",)
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    driver: str
    def __init__(self, driver: _Optional[str] = ...) -> None: ...

class GetDriverRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Driver(_message.Message):
    __slots__ = ("driver",)
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    driver: str
    def __init__(self, driver: _Optional[str] = ...) -> None: ...

class GetLargestEnsembleRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LargestEnsemble(_message.Message):
    __slots__ = ("ensemble_size", "wanted_by")
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WANTED_BY_FIELD_NUMBER: _ClassVar[int]
    ensemble_size: int
    wanted_by: str
    def __init__(self, ensemble_size: _Optional[int] = ..., wanted_by: _Optional[str] = ...) -> None: ...
