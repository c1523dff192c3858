"""The transactions by which etcd keeps the rules of a tree of versioned nodes. Pure: paths in, requests out."""

from __future__ import annotations

from collections.abc import Collection

from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.paths import ROOT, parent_of
from magnetar.metadata.store import ANY_VERSION, MUST_NOT_EXIST


def below(path: str) -> tuple[bytes, bytes]:
    """First key and end of the range of everything below a path."""
    prefix = (path if path == ROOT else path + "/").encode()
    return prefix, prefix[:-1] + b"0"  # The character after the slash.


def after_subtree(prefix: bytes, key: bytes) -> bytes:
    """Where to go on listing the children below a prefix after having seen this key: behind all below the same child.

    Keys that lie between a child and what is below it (`a-1` lies between `a` and `a/x`) come first and are kept."""
    name, slash, _ = key[len(prefix) :].partition(b"/")
    return prefix + name + b"0" if slash else key + b"\0"


def put_transaction(path: str, value: bytes, expected_version: int | None, lease: int) -> pb.TxnRequest:
    """Write if the parent stands and holds no lease; else answer the parent.

    Inside, whether the version is right: its own answer is empty when it is not. What is replaced keeps its lease."""
    key = path.encode()
    create = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
    replace = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, ignore_lease=True, prev_kv=True))
    if expected_version is ANY_VERSION:
        write = pb.TxnRequest(compare=[_absent(key)], success=[create], failure=[replace])
    elif expected_version == MUST_NOT_EXIST:
        write = pb.TxnRequest(compare=[_absent(key)], success=[create])
    else:
        write = pb.TxnRequest(compare=[_has_version(key, expected_version)], success=[replace])
    request = pb.TxnRequest(success=[pb.RequestOp(request_txn=write)])
    parent = parent_of(path)
    if parent != ROOT:
        request.compare.extend([_present(parent.encode()), _without_lease(parent.encode())])
        request.failure.append(_read(parent.encode()))
    return request


def put_while_there_transaction(
    path: str, value: bytes, expected_version: int, others: Collection[str]
) -> pb.TxnRequest:
    """`put_transaction` if all the others stand; else answer those that do."""
    keys = [other.encode() for other in others]
    put = pb.RequestOp(request_txn=put_transaction(path, value, expected_version, 0))
    return pb.TxnRequest(compare=[_present(key) for key in keys], success=[put], failure=[_read(key) for key in keys])


def delete_transaction(path: str, expected_version: int | None) -> pb.TxnRequest:
    """Delete if the version is right and nothing is below; else answer the node and one key below."""
    key = path.encode()
    first, end = below(path)
    childless = _absent(first)
    childless.range_end = end
    right = _present(key) if expected_version is ANY_VERSION else _has_version(key, expected_version)
    one_child = pb.RequestOp(request_range=pb.RangeRequest(key=first, range_end=end, limit=1, keys_only=True))
    return pb.TxnRequest(
        compare=[right, childless],
        success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))],
        failure=[_read(key), one_child],
    )


def delete_tree_transaction(path: str) -> pb.TxnRequest:
    """Delete a node and all below it."""
    first, end = below(path)
    request = pb.TxnRequest()
    if path != ROOT:
        request.success.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=path.encode())))
    tree = pb.DeleteRangeRequest(key=first, range_end=end)
    request.success.append(pb.RequestOp(request_delete_range=tree))
    return request


def number_transaction(parent: str) -> pb.TxnRequest:
    """Write the parent again as it is, if it stands: its version before is a number that nobody else gets."""
    key = parent.encode()
    again = pb.PutRequest(key=key, ignore_value=True, ignore_lease=True, prev_kv=True)
    return pb.TxnRequest(compare=[_present(key)], success=[pb.RequestOp(request_put=again)])


def _read(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def _absent(key: bytes) -> pb.Compare:
    """The condition that a range is empty (etcd compares what is missing as if its revision were 0)."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, create_revision=0)


def _present(key: bytes) -> pb.Compare:
    return pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.CREATE, key=key, create_revision=0)


def _has_version(key: bytes, version: int) -> pb.Compare:
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VERSION, key=key, version=version + 1)


def _without_lease(key: bytes) -> pb.Compare:
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.LEASE, key=key, lease=0)
