"""Makes keys and tokens, as `pulsar tokens` does. Importing this loads PyJWT and cryptography."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from magnetar.auth.keys import (
    EC_CURVES,
    HMAC_ALGORITHMS,
    algorithms_of,
    family,
    hmac_algorithms,
    read_private_key,
    read_public_key,
    read_secret_key,
)
from magnetar.core.errors import SettingError

RSA_KEY_BITS: Final = 2_048
"""What Apache's tool makes for RS256; longer ones for the stronger digests."""


class KeyPair(NamedTuple):
    """DER: PKCS 8 and X.509."""

    private: bytes
    public: bytes


def new_secret_key(algorithm: str) -> bytes:
    """A secret as long as the algorithm's digest. `SettingError`."""
    for name, size in HMAC_ALGORITHMS:
        if name == algorithm:
            return secrets.token_bytes(size)
    raise SettingError(f"{algorithm!r} has no secret key; those that have: {', '.join(dict(HMAC_ALGORITHMS))}")


def new_key_pair(algorithm: str) -> KeyPair:
    """A private key and its public one. `SettingError`."""
    kind = family(algorithm)
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if kind == "RSA":
        bits = {"384": 3_072, "512": 4_096}.get(algorithm[2:], RSA_KEY_BITS)
        key = rsa.generate_private_key(public_exponent=65_537, key_size=bits)
    elif kind == "EC":
        curves = {"secp256r1": ec.SECP256R1(), "secp384r1": ec.SECP384R1(), "secp521r1": ec.SECP521R1()}
        key = ec.generate_private_key(curves[EC_CURVES[algorithm]])
    else:
        raise SettingError(f"{algorithm} has a secret key, no pair of keys")
    der = serialization.Encoding.DER
    return KeyPair(
        key.private_bytes(der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        key.public_key().public_bytes(der, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


def sign_with_secret(name: str, key: str, claims: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """A token, signed by the strongest algorithm that the secret is long enough for. `SettingError`."""
    secret = read_secret_key(name, key)
    return jwt.encode(dict(claims), secret, hmac_algorithms(secret)[-1], headers=_header(headers))


def sign_with_private(
    name: str, key: str, claims: Mapping[str, Any], headers: Mapping[str, str], algorithm: str
) -> str:
    """A token, signed by a private key. `SettingError`, also when the algorithm is none of that key's."""
    private = read_private_key(name, key)
    fitting = algorithms_of(name, private)
    if algorithm not in fitting:
        raise SettingError(f"{name}: this key signs with {', '.join(fitting)}, not with {algorithm}")
    return jwt.encode(dict(claims), private, algorithm, headers=_header(headers))


def _header(headers: Mapping[str, str]) -> dict[str, Any]:
    # Apache's tool leaves out the type, which says nothing.
    return {"typ": None, **headers}


def shown(token: str) -> tuple[str, str]:
    """Header and claims of a token as JSON texts, unchecked. `SettingError` when it is no token."""
    try:
        whole = jwt.decode_complete(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise SettingError(f"this is no token: {error}") from None
    return _json(whole["header"]), _json(whole["payload"])


def validated(token: str, *, secret_key: str = "", public_key: str = "") -> str:
    """The claims of a token as a JSON text, once its signature and its times are found good. `SettingError`."""
    key: Any
    if secret_key:
        key = read_secret_key("--secret-key", secret_key)
        algorithms = hmac_algorithms(key)
    else:
        key = read_public_key("--public-key", public_key)
        algorithms = algorithms_of("--public-key", key)
    options: Any = {"verify_aud": False, "verify_iat": False, "verify_sub": False, "verify_jti": False}
    try:
        return _json(jwt.decode(token, key, algorithms=algorithms, options=options))
    except jwt.PyJWTError as error:
        raise SettingError(f"the token is not good: {error}") from None


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
