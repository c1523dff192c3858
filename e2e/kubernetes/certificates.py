"""The cluster's keys, certificates and kubeconfigs. They are made once and stay with the node's folder."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.kubernetes.places import API, API_SERVICE_ADDRESS, DOMAIN, NODE, NODE_ADDRESS, Places

Key: TypeAlias = ec.EllipticCurvePrivateKey

LIFE: Final = dt.timedelta(days=3650)
CLIENTS: Final = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "provisioner")
"""Components that are users of their own; RBAC knows the first three as `system:NAME` by itself."""


def make_certificates(places: Places) -> None:
    """Make all that are needed, unless they are there. The file `done` comes last: a half-made set is made again."""
    keys = places.keys
    if (keys / "done").exists():
        return
    keys.mkdir(parents=True, exist_ok=True)
    authority = Authority(keys)
    service = f"kubernetes.default.svc.{DOMAIN}"
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", service, "localhost"]
    authority.issue(
        "apiserver", "kube-apiserver", names=names, addresses=[API_SERVICE_ADDRESS, NODE_ADDRESS, "127.0.0.1"]
    )
    authority.issue("kubelet-serving", NODE, names=[NODE], addresses=[NODE_ADDRESS])
    # The API server passes requests on to extensions of the API as this user.
    authority.issue("front-proxy", "front-proxy-client")
    authority.issue("admin", "admin", organization="system:masters")
    # The node authorizer and NodeRestriction go by this name and this group.
    authority.issue("kubelet", f"system:node:{NODE}", organization="system:nodes")
    for name in CLIENTS:
        authority.issue(name, f"system:{name}")
    for name in (*CLIENTS, "kubelet"):
        write_kubeconfig(keys / f"{name}.conf", keys, name)
    write_kubeconfig(places.kubeconfig, keys, "admin")
    # What tokens of service accounts are signed with.
    tokens = new_key()
    write_secret(keys / "sa.key", private_pem(tokens))
    public = tokens.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (keys / "sa.pub").write_bytes(public)
    (keys / "done").touch()


class Authority:
    """Signs the certificates of one cluster; its own is `ca.crt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = new_key()
        self._name = subject("kube-ca")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        authority = x509.BasicConstraints(ca=True, path_length=None)
        builder = certificate(self._name, self._name, self._key).add_extension(authority, critical=True)
        self._write("ca", self._key, builder.add_extension(usage, critical=True))

    def issue(
        self,
        file: str,
        name: str,
        *,
        organization: str | None = None,
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> None:
        """Write FILE.key and FILE.crt: of a server if it has names or addresses, else of a client. Kubernetes takes the
        common name for the user and the organization for the group."""
        key = new_key()
        builder = certificate(subject(name, organization), self._name, key)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if addresses else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if addresses:
            found = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        self._write(file, key, builder)

    def _write(self, file: str, key: Key, builder: x509.CertificateBuilder) -> None:
        signed = builder.sign(self._key, hashes.SHA256())
        write_secret(self._folder / f"{file}.key", private_pem(key))
        (self._folder / f"{file}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def new_key() -> Key:
    """A key of the curve that is fastest everywhere."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: Key) -> bytes:
    """A key as files have it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def subject(name: str, organization: str | None = None) -> x509.Name:
    """A name of certificates."""
    found = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization is not None:
        found.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(found)


def certificate(name: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    """What all certificates have. They begin a day ago, so that clocks need not agree."""
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + LIFE)
    )


def write_kubeconfig(path: Path, keys: Path, name: str) -> None:
    """A kubeconfig with all that it needs in itself."""

    def encoded(file: str) -> str:
        return base64.b64encode((keys / file).read_bytes()).decode()

    text = f"""\
apiVersion: v1
kind: Config
clusters:
- name: magnetar-e2e
  cluster: {{server: "{API}", certificate-authority-data: {encoded("ca.crt")}}}
users:
- name: {name}
  user: {{client-certificate-data: {encoded(f"{name}.crt")}, client-key-data: {encoded(f"{name}.key")}}}
contexts:
- name: magnetar-e2e
  context: {{cluster: magnetar-e2e, user: {name}}}
current-context: magnetar-e2e
"""
    write_secret(path, text.encode())


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner reads, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
