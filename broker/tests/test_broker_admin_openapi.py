"""The API describes itself, and has what Apache's has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LISTED = Path(__file__).parent / "admin_routes.txt"
"""Verb and path of each endpoint of Apache's brokers (functions, sources, sinks and the worker's left out)."""

NOT_SERVED = {
    "/admin/v3/packages": "there are no packages yet",
    "/admin/v2/metadata/migration": "the metadata store cannot be changed while brokers run",
    "/topics": "publishing over HTTP is not there yet",
}
"""By the beginning of the path, why it is not served."""

NO_POLICY = {
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscriptionExpirationTime": (
        "policies of topics are kept as Pulsar 4.0 keeps them, which has no such policy"
    ),
}

PARAMETER = re.compile(r"\{[^}]*\}")


def shape(line: str) -> str:
    """An endpoint without its parameters' names."""
    return PARAMETER.sub("{}", line)


def reason(line: str) -> str | None:
    """Why an endpoint is not served, None when it is to be."""
    path = line.split(" ")[1]
    return NO_POLICY.get(path) or next((why for start, why in NOT_SERVED.items() if path.startswith(start)), None)


async def test_every_listed_endpoint_is_served_or_has_a_reason(admin: Any) -> None:
    status, document = await admin("GET", "/openapi.json")
    assert status == 200
    served = {f"{verb.upper()} {shape(path)}" for path, operations in document["paths"].items() for verb in operations}
    listed = [
        line.replace("{topic-domain}", domain)
        for line in LISTED.read_text().splitlines()
        for domain in (("persistent", "non-persistent") if "{topic-domain}" in line else ("",))
        if line and not line.startswith("#")
    ]
    missing = [line for line in listed if shape(line) not in served and reason(line) is None]
    assert missing == []
    superfluous = [
        start for start in NOT_SERVED if any(endpoint.split(" ")[1].startswith(start) for endpoint in served)
    ]
    assert superfluous == []


async def test_every_operation_says_what_it_does(admin: Any) -> None:
    _, document = await admin("GET", "/openapi.json")
    operations = [
        (verb, path, operation) for path, verbs in document["paths"].items() for verb, operation in verbs.items()
    ]
    assert [(verb, path) for verb, path, operation in operations if not operation["summary"]] == []
    for _, path, operation in operations:
        in_path = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", path)
    stats = document["paths"]["/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats"]["get"]
    assert "excludeConsumers" in [one["name"] for one in stats["parameters"] if one["in"] == "query"]


async def test_the_page_needs_nothing_from_elsewhere(admin: Any) -> None:
    status, page = await admin("GET", "/docs")
    assert status == 200
    assert "/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats" in page
    assert "<script" not in page
    assert "//" not in page
