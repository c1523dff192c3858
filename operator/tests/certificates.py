"""Certificates and keys that tests put into Secrets."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """In PEM."""

    certificate: bytes
    key: bytes


def make_pair(now_seconds: float, *, from_days: float = -1.0, to_days: float = 30.0) -> Pair:
    """A certificate that signs itself, valid for so many days before and after."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.fromtimestamp(now_seconds, dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "demo-proxy")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=from_days))
        .not_valid_after(now + dt.timedelta(days=to_days))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(encoding), private)


def encoded(**content: bytes) -> dict[str, str]:
    """As Secrets have it; `tls_crt` stands for `tls.crt`, `broker_token` for `broker-token`."""
    names = {name: name.replace("_token", "-token").replace("_", ".") for name in content}
    return {names[name]: base64.b64encode(value).decode() for name, value in content.items()}
