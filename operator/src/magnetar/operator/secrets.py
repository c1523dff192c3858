"""Secrets that a PulsarCluster names: what is wrong with them is told at once, before a pod waits for them. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.auth.certificates import authority_problem, certificate_problem
from magnetar.auth.keys import read_public_key, read_secret_key
from magnetar.core.errors import SettingError
from magnetar.operator.children.access import BROKER_TOKEN_KEY, PROXY_TOKEN_KEY
from magnetar.operator.children.read_only import PARAMETERS_KEY, TOKEN_KEY
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.facts import SpecProblem
from magnetar.operator.resources.cluster import PulsarClusterSpec, TlsSpec
from magnetar.operator.resources.read_only import AttachSpec

SECRET_MISSING: Final = "SecretMissing"  # noqa: S105  (a reason)
SECRET_INVALID: Final = "SecretInvalid"  # noqa: S105  (a reason)
CERTIFICATE_INVALID: Final = "CertificateInvalid"


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """One that a spec names."""

    name: str
    field: str
    """Where the spec names it."""
    look: Callable[[Mapping[str, bytes], float], tuple[str, str]]
    """What is wrong with its content now, as a reason and words; both empty for nothing."""
    remedy: str


def named_secrets(spec: PulsarClusterSpec) -> list[NamedSecret]:
    """The Secrets that a cluster names which is to run: asleep it needs none."""
    if spec.hibernated:
        return []
    found = []
    if (tls := spec.tls) is not None:
        remedy = "make it with tls.crt and tls.key, as cert-manager or `kubectl create secret tls` do"
        found.append(NamedSecret(tls.secret_name, "spec.tls.secretName", partial(_wrong_certificate, tls), remedy))
    if spec.authentication is not None:
        token = spec.authentication.token
        keys = ["secret.key" if token.key == "Secret" else "public.key"]
        keys += [BROKER_TOKEN_KEY] if spec.attach is None or spec.attach.credentials is None else []
        keys += [PROXY_TOKEN_KEY] if spec.proxy.replicas and spec.attach is None else []
        remedy = f"make it with {', '.join(keys)}: `magnetar tokens` makes them"
        look = partial(_wrong_tokens, keys)
        found.append(NamedSecret(token.secret_name, "spec.authentication.token.secretName", look, remedy))
    return found + (_of_others(spec.attach) if spec.attach is not None else [])


def _of_others(attach: AttachSpec) -> list[NamedSecret]:
    """How brokers are spoken to that others run."""
    found = []
    if (credentials := attach.credentials) is not None:
        key = PARAMETERS_KEY if credentials.plugin is not None else TOKEN_KEY
        remedy = f"make it with {key}, which that cluster's brokers accept"
        field = "spec.attach.credentials.secretName"
        found.append(NamedSecret(credentials.secret_name, field, partial(_wrong_text, key), remedy))
    if (tls := attach.broker_tls) is not None:
        remedy = "make it with ca.crt, the authority of that cluster's certificates"
        found.append(NamedSecret(tls.secret_name, "spec.attach.brokerTls.secretName", _wrong_authority, remedy))
    return found


def trouble_of(wanted: NamedSecret, found: Manifest | None, now_seconds: float) -> SpecProblem | None:
    """What is to be said of it; None: nothing."""
    if found is None:
        words = f"Secret {wanted.name}, which {wanted.field} names, is not there: {wanted.remedy}"
        return SpecProblem(reason=SECRET_MISSING, message=words)
    try:
        content = {name: base64.b64decode(text or "") for name, text in (found.get("data") or {}).items()}
    except (binascii.Error, ValueError):
        content = {}
    reason, what = wanted.look(content, now_seconds)
    if not reason:
        return None
    return SpecProblem(reason=reason, message=f"Secret {wanted.name} of {wanted.field}: {what}")


def _wrong_certificate(tls: TlsSpec, content: Mapping[str, bytes], now_seconds: float) -> tuple[str, str]:
    keys = ["tls.crt", "tls.key"] + (["ca.crt"] if tls.require_client_certificates else [])
    if lacking := _lacking(content, keys):
        return SECRET_INVALID, lacking
    problem = certificate_problem(content["tls.crt"], content["tls.key"], now_seconds)
    if not problem and "ca.crt" in keys:
        problem = authority_problem(content["ca.crt"])
    return (CERTIFICATE_INVALID, f"{problem}; renew it") if problem else ("", "")


def _wrong_tokens(keys: Sequence[str], content: Mapping[str, bytes], _: float) -> tuple[str, str]:
    if lacking := _lacking(content, keys):
        return SECRET_INVALID, lacking
    read = read_secret_key if keys[0] == "secret.key" else read_public_key
    try:
        read(keys[0], f"data:;base64,{base64.b64encode(content[keys[0]]).decode()}")
    except SettingError as error:
        return SECRET_INVALID, f"{error}: `magnetar tokens` makes another one"
    return "", ""


def _wrong_text(key: str, content: Mapping[str, bytes], _: float) -> tuple[str, str]:
    lacking = _lacking(content, [key])
    return (SECRET_INVALID, lacking) if lacking else ("", "")


def _wrong_authority(content: Mapping[str, bytes], _: float) -> tuple[str, str]:
    if lacking := _lacking(content, ["ca.crt"]):
        return SECRET_INVALID, lacking
    problem = authority_problem(content["ca.crt"])
    return (CERTIFICATE_INVALID, problem) if problem else ("", "")


def _lacking(content: Mapping[str, bytes], keys: Sequence[str]) -> str:
    missing = [name for name in keys if not content.get(name, b"").strip()]
    return f"it has no {' and no '.join(missing)}: add what is missing" if missing else ""
