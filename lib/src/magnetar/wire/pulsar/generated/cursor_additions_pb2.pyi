# mypy: disable-error-code="type-arg, valid-type"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerRedeliveries(_message.Message):
    __slots__ = ("ledgerId", "entryIds", "counts")
    LEDGERID_FIELD_NUMBER: _ClassVar[int]
    ENTRYIDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ledgerId: int
    entryIds: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledgerId: _Optional[int] = ..., entryIds: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class CursorAdditions(_message.Message):
    __slots__ = ("redeliveries",)
    REDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    redeliveries: _containers.RepeatedCompositeFieldContainer[LedgerRedeliveries]
    def __init__(self, redeliveries: _Optional[_Iterable[_Union[LedgerRedeliveries, _Mapping]]] = ...) -> None: ...
