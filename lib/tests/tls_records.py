"""TLS 1.3 records made by hand, which no client sends through OpenSSL: a peer that wants new keys again and again."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from magnetar.net.tls_layer.engine import TlsEngine

KEY_BYTES = 32
"""As TLS_AES_256_GCM_SHA384 has it, OpenSSL's first choice."""


def watched_client_context(folder: Path) -> ssl.SSLContext:
    """Takes any certificate, and writes its keys down."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(folder / "keys")
    return context


class HandmadePeer:
    """A client whose handshake OpenSSL makes; what follows is made here."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._keys = folder / "keys"
        self.engine = TlsEngine(watched_client_context(folder), server_side=False, server_name="localhost")

    def begin(self) -> None:
        """The handshake is finished: go on from its keys."""
        assert self.engine.tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        lines = [line.split() for line in self._keys.read_text().splitlines() if not line.startswith("#")]
        self._secret = bytes.fromhex(next(line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"))
        self._folder.cleanup()
        self._take_keys()

    def words(self, data: bytes) -> bytes:
        """One record that says this."""
        return self._record(23, data)

    def new_keys(self) -> bytes:
        """One record that changes keys, and wants the other side to do so, too."""
        record = self._record(22, b"\x18\x00\x00\x01\x01")
        self._secret = self._expanded(b"traffic upd", hashlib.sha384().digest_size)
        self._take_keys()
        return record

    def _take_keys(self) -> None:
        self._cipher = AESGCM(self._expanded(b"key", KEY_BYTES))
        self._nonce = int.from_bytes(self._expanded(b"iv", 12), "big")
        self._number = 0

    def _expanded(self, label: bytes, size_bytes: int) -> bytes:
        # One block of HKDF is enough for each of these.
        label = b"tls13 " + label
        info = struct.pack(">HB", size_bytes, len(label)) + label + b"\x00\x01"
        return hmac.new(self._secret, info, hashlib.sha384).digest()[:size_bytes]

    def _record(self, kind: int, data: bytes) -> bytes:
        nonce = (self._nonce ^ self._number).to_bytes(12, "big")
        self._number += 1
        header = struct.pack(">BHH", 23, 0x0303, len(data) + 1 + 16)
        return header + self._cipher.encrypt(nonce, data + bytes([kind]), header)
