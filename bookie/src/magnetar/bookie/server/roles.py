"""Whom a bookie serves by the client's certificate: its role, as BookKeeper reads it.

The role stands in the subject's first organizational unit, such as `OU=0:broker,backup;1:cluster`: codes with their
values, of which code 0 has the roles, and the first role counts (BookKeeper: util/CertUtils, tls/BookieAuthZFactory).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

ROLE_CODE: Final = "0"
_VALUE: Final = re.compile(r"^([0-9]+):(.*)$")
_UNIT: Final = "organizationalUnitName"


def role_of(certificate: Mapping[str, Any]) -> str:
    """The role that a certificate gives, as `ssl.SSLSocket.getpeercert` shows it; empty: none."""
    roles = ""
    for part in _first_unit(certificate).split(";"):
        if (found := _VALUE.match(part)) and found[1] == ROLE_CODE:
            roles = found[2]
    return roles.split(",")[0].strip()


def role_problem(certificate: Mapping[str, Any], allowed: Collection[str]) -> str:
    """Why a client with this certificate is not served, in words; empty: it is."""
    if not certificate:
        return "it showed no certificate"
    role = role_of(certificate)
    if not role:
        return f"its certificate names no role: there is no {ROLE_CODE}:ROLE in the organizational unit (OU)"
    if role not in allowed:
        return f"its role {role!r} is none of authorizedRoles"
    return ""


def _first_unit(certificate: Mapping[str, Any]) -> str:
    for relative_name in certificate.get("subject", ()):
        for name, value in relative_name:
            if name == _UNIT:
                return str(value)
    return ""
