"""Requests go to the broker that owns what they are about."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from magnetar.broker.admin.clusters.isolation_policies import namespaces_to_unload
from magnetar.broker.admin.web.owners import redirect


@pytest.mark.parametrize(
    ("asked", "authoritative", "location"),
    [
        ("/a/b", False, "http://b2:8080/a/b?authoritative=false"),
        ("/a/b?authoritative=false", True, "http://b2:8080/a/b?authoritative=true"),
        ("/a/b?x=1&authoritative=false&y=%2F", True, "http://b2:8080/a/b?x=1&y=%2F&authoritative=true"),
        ("/a/b%2Fc/d%252Fe?x=a+b", False, "http://b2:8080/a/b%2Fc/d%252Fe?x=a+b&authoritative=false"),
    ],
)
def test_redirect_keeps_path_and_query(asked: str, authoritative: bool, location: str) -> None:
    answer = redirect(make_mocked_request("PUT", asked), "http://b2:8080/", authoritative=authoritative)
    assert answer.status == 307
    assert answer.headers["Location"] == location


def test_redirect_leaves_out_what_the_owner_must_not_see() -> None:
    request = make_mocked_request("PUT", "/a?destinationBroker=b&x=1")
    answer = redirect(request, "http://b2:8080", authoritative=False, without="destinationBroker")
    assert answer.headers["Location"] == "http://b2:8080/a?x=1&authoritative=false"


POLICY = {"namespaces": ["t/a.*"], "primary": ["b1"], "secondary": []}


@pytest.mark.parametrize(
    ("changed", "former", "moved"),
    [
        ({}, None, ["t/a", "t/ab"]),
        ({}, POLICY, []),
        ({"unload_scope": "all_matching"}, POLICY, ["t/a", "t/ab"]),
        ({"unload_scope": "none"}, None, []),
        ({"namespaces": ["t/b.*"]}, POLICY, ["t/a", "t/ab", "t/b"]),
        ({"namespaces": ["t/ab"]}, POLICY, ["t/a"]),
        ({"primary": ["b2"]}, POLICY, ["t/a", "t/ab"]),
        ({"namespaces": ["t/b"], "secondary": ["b2"]}, POLICY, ["t/a", "t/ab", "t/b"]),
    ],
)
def test_what_a_changed_isolation_policy_moves(
    changed: dict[str, Any], former: dict[str, Any] | None, moved: list[str]
) -> None:
    assert namespaces_to_unload(["t/a", "t/ab", "t/b", "u/a"], {**POLICY, **changed}, former) == moved
