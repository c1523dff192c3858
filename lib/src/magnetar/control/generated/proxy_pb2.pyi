# mypy: disable-error-code="type-arg, valid-type"
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetProxyStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProxyState(_message.Message):
    __slots__ = ("accepting", "connections", "joined_connections", "requests_under_way", "brokers", "bytes_passed", "rejected_connections", "denied_targets")
    ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    JOINED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PASSED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    DENIED_TARGETS_FIELD_NUMBER: _ClassVar[int]
    accepting: bool
    connections: int
    joined_connections: int
    requests_under_way: int
    brokers: int
    bytes_passed: int
    rejected_connections: int
    denied_targets: int
    def __init__(self, accepting: _Optional[bool] = ..., connections: _Optional[int] = ..., joined_connections: _Optional[int] = ..., requests_under_way: _Optional[int] = ..., brokers: _Optional[int] = ..., bytes_passed: _Optional[int] = ..., rejected_connections: _Optional[int] = ..., denied_targets: _Optional[int] = ...) -> None: ...

class DrainProxyRequest(_message.Message):
    __slots__ = ("limit_ms", "interval_ms")
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    limit_ms: int
    interval_ms: int
    def __init__(self, limit_ms: _Optional[int] = ..., interval_ms: _Optional[int] = ...) -> None: ...
