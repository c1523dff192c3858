# mypy: disable-error-code="type-arg, valid-type"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NetworkUsage(_message.Message):
    __slots__ = ("bytesPerPeriod", "messagesPerPeriod")
    BYTESPERPERIOD_FIELD_NUMBER: _ClassVar[int]
    MESSAGESPERPERIOD_FIELD_NUMBER: _ClassVar[int]
    bytesPerPeriod: int
    messagesPerPeriod: int
    def __init__(self, bytesPerPeriod: _Optional[int] = ..., messagesPerPeriod: _Optional[int] = ...) -> None: ...

class ResourceUsage(_message.Message):
    __slots__ = ("owner", "publish", "dispatch", "waits")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    publish: NetworkUsage
    dispatch: NetworkUsage
    waits: int
    def __init__(self, owner: _Optional[str] = ..., publish: _Optional[_Union[NetworkUsage, _Mapping]] = ..., dispatch: _Optional[_Union[NetworkUsage, _Mapping]] = ..., waits: _Optional[int] = ...) -> None: ...

class ResourceUsageInfo(_message.Message):
    __slots__ = ("broker", "usageMap")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    USAGEMAP_FIELD_NUMBER: _ClassVar[int]
    broker: str
    usageMap: _containers.RepeatedCompositeFieldContainer[ResourceUsage]
    def __init__(self, broker: _Optional[str] = ..., usageMap: _Optional[_Iterable[_Union[ResourceUsage, _Mapping]]] = ...) -> None: ...
