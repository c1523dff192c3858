"""Private keys, certificates and authorities in the kinds of files that Java's programs keep them in.

PEM is read by OpenSSL itself. A PKCS #12 store is opened by `cryptography` and goes to OpenSSL without a file on a
disk, as it holds a private key. JKS is Java's own form; nothing here reads it.
"""

from __future__ import annotations

import enum
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.core.bounded_file import read_bounded
from magnetar.core.errors import SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

STORE_BYTES_MAX: Final = 16 * 1024 * 1024
"""No store of keys or authorities is larger; a file that is something else is not read into memory."""


class StoreType(enum.StrEnum):
    """What kind of file it is; BookKeeper's words (tls/TLSContextFactory.KeyStoreType)."""

    PEM = "PEM"
    PKCS12 = "PKCS12"
    JKS = "JKS"


def check_type(kind: StoreType, setting: str) -> None:
    """`SettingError` for a kind that cannot be read; it names the setting and says what to do."""
    if kind is StoreType.JKS:
        raise SettingError(
            f"{setting} is JKS (the default where it is not set), which cannot be read here; convert the store "
            "with `keytool -importkeystore -srckeystore STORE.jks -destkeystore STORE.p12 -deststoretype PKCS12` and "
            f"set {setting}=PKCS12, or use files in PEM and {setting}=PEM"
        )


def password_in(file: Path | None) -> bytes | None:
    """The password that a file holds, without white space around it; None without a file or with an empty one.
    `SettingError`."""
    if file is None:
        return None
    return read_bounded(file, "the password file", STORE_BYTES_MAX).strip() or None


def load_store(context: ssl.SSLContext, store: Path, password_file: Path | None) -> None:
    """Show the key and the certificates of a PKCS #12 store. `SettingError`."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    opened = _open(store, password_file)
    if opened.key is None or opened.cert is None:
        raise SettingError(f"the key store {store} holds no private key with its certificate")
    parts = [opened.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    parts += [one.certificate.public_bytes(Encoding.PEM) for one in (opened.cert, *opened.additional_certs)]
    # OpenSSL takes keys from files only; this one is in memory, and gone when it is closed.
    descriptor = os.memfd_create("key-store", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as memory:
            memory.write(b"".join(parts))
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        raise SettingError(f"the key store {store} cannot be used: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def trust_store(context: ssl.SSLContext, store: Path, password_file: Path | None) -> None:
    """Trust the certificates of a PKCS #12 store. `SettingError`."""
    from cryptography.hazmat.primitives.serialization import Encoding

    opened = _open(store, password_file)
    certificates = [one.certificate for one in ((opened.cert,) if opened.cert else ())]
    certificates += [one.certificate for one in opened.additional_certs]
    if not certificates:
        raise SettingError(f"the trust store {store} holds no certificate")
    text = b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
    context.load_verify_locations(cadata=text.decode("ascii"))


def _open(store: Path, password_file: Path | None) -> PKCS12KeyAndCertificates:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        return pkcs12.load_pkcs12(read_bounded(store, "the store", STORE_BYTES_MAX), password_in(password_file))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(f"{store} is no PKCS #12 store, or its password is another one: {error}") from None
