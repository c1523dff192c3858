"""Keys and password files as Pulsar's settings name them (Pulsar `AuthTokenUtils.readKeyFromUrl`)."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import unquote

from magnetar.core.errors import SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

    PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey
    PrivateKey: TypeAlias = RSAPrivateKey | EllipticCurvePrivateKey

SECRET_BYTES_MIN: Final = 32
"""What HS256 wants at least (RFC 7518, 3.2); Apache's library refuses shorter ones, too."""

HMAC_ALGORITHMS: Final = (("HS256", 32), ("HS384", 48), ("HS512", 64))
"""With the bytes that a key must have for each."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
EC_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
ALGORITHMS: Final = (*(name for name, _ in HMAC_ALGORITHMS), *RSA_ALGORITHMS, *EC_CURVES)


def read_data(name: str, text: str) -> bytes:
    """What a setting says: the content of `file:…` or of a path, of `data:…`, or base64. `SettingError`."""
    if text.startswith("data:"):
        return _data_url(name, text)
    named = text.startswith("file:")
    path = Path(file_of_url(text)) if named else Path(text)
    if named or _exists(path):
        try:
            return path.read_bytes()
        except OSError as error:
            raise SettingError(f"{name}: {path} cannot be read: {error.strerror}") from None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        # Not told what it is: it may be the secret itself.
        raise SettingError(f"{name} is neither file:…, data:…, a path of a file, nor base64") from None


def _exists(path: Path) -> bool:
    """What is too long for a path (as keys may be) is none."""
    try:
        return path.exists()
    except OSError:
        return False


def file_of_url(url: str) -> str:
    """The path that `file:///path`, `file:/path` or `file:path` names."""
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path[2:].lstrip("/")
    return unquote(path.strip())


def _data_url(name: str, text: str) -> bytes:
    kind, comma, content = text.removeprefix("data:").partition(",")
    if not comma:
        raise SettingError(f"{name}: data: must be followed by ;base64, and the content")
    if not kind.endswith(";base64"):
        return unquote(content).encode()
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise SettingError(f"{name}: what follows data:…;base64, is not base64") from None


def read_secret_key(name: str, text: str) -> bytes:
    """The secret of HMAC signatures. `SettingError`, also when it is too short to be safe."""
    secret = read_data(name, text)
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingError(f"{name}: a secret of {len(secret)} bytes is too short, HS256 wants {SECRET_BYTES_MIN}")
    return secret


def hmac_algorithms(secret: bytes) -> list[str]:
    """The algorithms for which a secret is long enough, the strongest last."""
    return [name for name, size in HMAC_ALGORITHMS if len(secret) >= size]


def read_public_key(name: str, text: str) -> PublicKey:
    """A public key, DER (X.509) or PEM. `SettingError`."""
    from cryptography.hazmat.primitives import serialization

    content = read_data(name, text)
    load = serialization.load_pem_public_key if _is_pem(content) else serialization.load_der_public_key
    try:
        return cast("PublicKey", _checked(name, load(content)))
    except (ValueError, TypeError):
        raise SettingError(f"{name}: this is no public key, neither DER nor PEM") from None


def read_private_key(name: str, text: str) -> PrivateKey:
    """A private key, DER (PKCS 8) or PEM. `SettingError`."""
    from cryptography.hazmat.primitives import serialization

    content = read_data(name, text)
    load = serialization.load_pem_private_key if _is_pem(content) else serialization.load_der_private_key
    try:
        return cast("PrivateKey", _checked(name, load(content, None)))
    except (ValueError, TypeError):
        raise SettingError(f"{name}: this is no private key without a password, neither DER nor PEM") from None


def _is_pem(content: bytes) -> bool:
    return content.lstrip().startswith(b"-----BEGIN")


def _checked(name: str, key: object) -> object:
    algorithms_of(name, key)
    return key


def algorithms_of(name: str, key: object) -> list[str]:
    """The signature algorithms that fit a key, the usual one first. `SettingError` when there are none."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        return list(RSA_ALGORITHMS)
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        fitting = [algorithm for algorithm, curve in EC_CURVES.items() if curve == key.curve.name]
        if fitting:
            return fitting
    raise SettingError(f"{name}: tokens are signed with RSA keys or with those of {', '.join(EC_CURVES)}")


def family(algorithm: str) -> str:
    """RSA, EC or HMAC. `SettingError` for a name that is no algorithm of tokens."""
    if algorithm in RSA_ALGORITHMS:
        return "RSA"
    if algorithm in EC_CURVES:
        return "EC"
    if algorithm in ALGORITHMS:
        return "HMAC"
    raise SettingError(f"signature algorithm {algorithm!r} is not one of {', '.join(ALGORITHMS)}")
