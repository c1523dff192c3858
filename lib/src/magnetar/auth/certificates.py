"""Whether a server can show a certificate: what is wrong with it is told before a client, or the server, finds out."""

from __future__ import annotations

from datetime import UTC, datetime


def certificate_problem(certificate: bytes, key: bytes, now_seconds: float) -> str:
    """Why a chain of certificates in PEM (the server's own first) and its private key cannot be shown, in words that
    begin with the part at fault, `tls.crt` or `tls.key`; empty: they can. `now_seconds` since 1970."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        own = x509.load_pem_x509_certificates(certificate)[0]
        of_certificate = own.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return "tls.crt is no certificate in PEM"
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "tls.key is no private key in PEM without a password"
    if _encoded(private.public_key()) != _encoded(of_certificate):
        return "tls.key is not the key of tls.crt"
    now = datetime.fromtimestamp(now_seconds, UTC)
    if now >= own.not_valid_after_utc:
        return f"tls.crt has expired at {_written(own.not_valid_after_utc)}"
    if now < own.not_valid_before_utc:
        return f"tls.crt is not valid before {_written(own.not_valid_before_utc)}"
    return ""


def authority_problem(certificates: bytes) -> str:
    """What is wrong with the certificates that clients' are checked by (`ca.crt`), in words; empty: nothing."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        x509.load_pem_x509_certificates(certificates)
    except (ValueError, UnsupportedAlgorithm):
        return "ca.crt is no certificate in PEM"
    return ""


def _encoded(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    found = key.public_bytes(encoding, form)  # type: ignore[attr-defined]  # All public keys have it.
    assert isinstance(found, bytes)
    return found


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
