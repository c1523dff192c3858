"""Messages are read from bytes and text, or refused with one error."""

import pytest
from google.protobuf import descriptor_pb2
from magnetar.wire.bookkeeper.generated.bookie_cookie_pb2 import CookieFormat
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import defined_name, parse, parse_text, to_text


def test_bytes_and_text_give_the_message() -> None:
    cookie = CookieFormat(bookieHost="b", journalDir="j", ledgerDirs="l")
    assert parse(CookieFormat, cookie.SerializeToString()) == cookie
    assert parse_text(CookieFormat, to_text(cookie)) == cookie


def test_garbage_is_refused_and_named() -> None:
    with pytest.raises(BadProtobuf, match="CookieFormat"):
        parse(CookieFormat, b"\xff\xff")
    with pytest.raises(BadProtobuf, match="CookieFormat"):
        parse_text(CookieFormat, "nothing: of it")


def descriptors(*, imports: str) -> bytes:
    first = descriptor_pb2.FileDescriptorProto(name="a", package="p", dependency=["b"])
    first.message_type.add(name="Outer").nested_type.add(name="Inner")
    second = descriptor_pb2.FileDescriptorProto(name="b", dependency=[imports] if imports else [])
    second.message_type.add(name="Other")
    return descriptor_pb2.FileDescriptorSet(file=[first, second]).SerializeToString()


@pytest.mark.parametrize("name", ["p.Outer", "Outer"])
def test_a_defined_message_is_found_by_either_name(name: str) -> None:
    assert defined_name(descriptors(imports=""), name, "a") == "p.Outer"


@pytest.mark.parametrize(("imports", "name", "file"), [("a", "Outer", "a"), ("c", "Outer", "a"), ("", "Outer", "b")])
def test_a_set_without_it_is_refused(imports: str, name: str, file: str) -> None:
    with pytest.raises(BadProtobuf):
        defined_name(descriptors(imports=imports), name, file)
