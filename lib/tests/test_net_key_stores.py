"""PKCS #12 stores: all that they hold is shown or trusted, and nothing of the key stays open."""

from __future__ import annotations

import os
import ssl
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.serialization import NoEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12PrivateKeyTypes,
    serialize_key_and_certificates,
)
from cryptography.x509 import Certificate as ReadCertificate
from cryptography.x509 import load_pem_x509_certificate
from magnetar.core.errors import SettingError
from magnetar.net.key_stores import load_store, trust_store
from magnetar.net.testing import Certificate, TestAuthority


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Certificate]:
    folder = tmp_path_factory.mktemp("authorities")
    return [TestAuthority(folder, f"authority-{number}").own for number in range(4)]


def read(certificate: Certificate) -> ReadCertificate:
    return load_pem_x509_certificate(certificate.certificate_file.read_bytes())


def store_of(folder: Path, own: Certificate | None, others: list[Certificate]) -> Path:
    """A store with these certificates, and with the key of the own one."""
    key = None if own is None else load_pem_private_key(own.key_file.read_bytes(), None)
    data = serialize_key_and_certificates(
        b"own",
        cast("PKCS12PrivateKeyTypes | None", key),
        None if own is None else read(own),
        [read(one) for one in others],
        NoEncryption(),
    )
    file = folder / "store.p12"
    file.write_bytes(data)
    return file


class SeenContext:
    """Takes what OpenSSL would be given."""

    def __init__(self, *, failing: bool = False) -> None:
        self.file = ""
        self.text = b""
        self.failing = failing

    def load_cert_chain(self, file: str) -> None:
        self.file = file
        self.text = Path(file).read_bytes()
        if self.failing:
            raise OSError("no key")


def test_the_whole_chain_is_shown_with_the_own_certificate_first(
    authorities: list[Certificate], tmp_path: Path
) -> None:
    """Who trusts the root alone needs those between."""
    own, *between = authorities
    seen = SeenContext()
    load_store(cast(ssl.SSLContext, seen), store_of(tmp_path, own, between), None)
    shown = seen.text.partition(b"-----BEGIN CERTIFICATE-----")
    assert b"PRIVATE KEY" in shown[0]
    assert (shown[1] + shown[2]).startswith(own.certificate_file.read_bytes().strip())
    assert seen.text.count(b"BEGIN CERTIFICATE") == 4


@pytest.mark.parametrize("failing", [False, True])
def test_the_key_in_memory_is_gone_afterwards(authorities: list[Certificate], tmp_path: Path, *, failing: bool) -> None:
    seen = SeenContext(failing=failing)
    with pytest.raises(SettingError, match="no key") if failing else nullcontext():
        load_store(cast(ssl.SSLContext, seen), store_of(tmp_path, authorities[0], []), None)
    descriptor = int(seen.file.rpartition("/")[2])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_every_certificate_of_a_trust_store_is_trusted(authorities: list[Certificate], tmp_path: Path) -> None:
    """With a key's own certificate or without any."""
    for own, others in ((None, authorities[:3]), (authorities[3], authorities[:3])):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust_store(context, store_of(tmp_path, own, others), None)
        assert context.cert_store_stats()["x509"] == len(others) + (own is not None)
