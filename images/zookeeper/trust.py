"""Puts every certificate of the base image's bundle where update-ca-certificates looks, so that none is lost."""

from __future__ import annotations

import re
from pathlib import Path

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
LOCAL = Path("/usr/local/share/ca-certificates")

if BUNDLE.exists():
    LOCAL.mkdir(parents=True, exist_ok=True)
    found = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", BUNDLE.read_text(), re.DOTALL)
    for number, certificate in enumerate(found):
        (LOCAL / f"bundle-{number:03}.crt").write_text(certificate)
