"""Keys, tokens and passwords that Apache's `pulsar tokens`, httpd's `htpasswd` and OpenSSL have made; certificates."""

# ruff: noqa: S105 - Known to all: they open nothing.

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from magnetar.auth.token_making import sign_with_secret

SECRET: Final = "0FoUeLR2HV+pcTh2j+TqcVQXsAPlTChgiNnqExf6pY0="
"""HS256, base64; all tokens are of the subject `producer` unless said otherwise."""
TOKEN: Final = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwcm9kdWNlciJ9.KLK-mK4SHZMC9klxO3j4oG1-WeCSFnnLtVdz-DoYLbE"
TOKEN_TILL_2036: Final = (
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwcm9kdWNlciIsImV4cCI6MjExMDYxMTE5Mn0.5ob9V34m80jo2kNcXyyb_EiIHAkJ0gP3bYlyj81ExYE"
)
TILL_2036_SECONDS: Final = 2_110_611_192
LATE_TOKEN: Final = (
    "eyJraWQiOiJhIiwiYWxnIjoiSFMyNTYifQ.eyJzdWIiOiJsYXRlIiwiZXhwIjoxNzk1MjUwNTc2fQ."
    "zIWF_GhYmPeYwQBm7NaFpIxuD7nygOKCLpjgIF4Lh18"
)
"""A token of the subject `late`."""
LATE_SECONDS: Final = 1_795_250_576

SECRET_512: Final = "sZ8gRocsF33BPgx26BVCQ+nvrPZbc6TMfk5WaoFJFlIfceIKLeec3AakE3Z+aZcEML8Hu9gNX96XUIl6VshEqQ=="
TOKEN_512: Final = (
    "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJwcm9kdWNlciJ9."
    "wbU0yor0CFzzIxiHk2iXhZT2KWaBfdhmU-rKhSn1GuO7cz58iLBhcsQnDyQrz13Q_efvr-Q6hq5bpjnvkQt7Vw"
)

EC_PUBLIC_KEY: Final = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEcfAz3UDSXQtmzetnEt3kOehNRjZ6zG9MBVVgMJrlhNgtTM+Bzork8uTetmjwNh1bESZPeZhVYUmM"
    "mrET9lNeRA=="
)
EC_TOKEN: Final = (
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJwcm9kdWNlciJ9."
    "1cXztI-jgLSwMXMgkgBymWQGCeSqQ-727C4f3GHvW3IL65Ud1vLrYaMFut6ojbtiqc4t0AWEbSRdPS01Y7UddQ"
)

RSA_PUBLIC_KEY: Final = (
    "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAudFPZaAJPr6qTicv9e8lrlwdAUiuIItOqpyImJ6cnfgcE3TgNfxAQsOBqOQqVH7g3SeoTiZg"
    "thYVmsYt7JQnwRAKEwDEw0EfrDgsdDDU7h0axMrVLe29W8vZ1vvxYlicCXxAeuLMjpWFVvubRZs30vWXAetz8VE/qsYUePQu9CXT5AYV4GusA8WaiG6r"
    "t8ZstZ/p0aCPKco1BYGm5LMs83onRIAYDMDwzD00QmuybHfun9gqKAT23z3IGKPFG7/zPsBXttZV1gFvp+DyPerAZr55HEXUF5g/MXkbZtrw1CJvGGle"
    "hXSgKNGniptG8cpH/TliIaLYN/EWKCaw3zaK4wIDAQAB"
)
RSA_TOKEN: Final = (
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwcm9kdWNlciJ9.j6p6cPw9L0OXdVoBX0qmsvbdTPv3dxCVd3h9NYC-0HijE6199EZ53Ha0nbPxx_MJV059"
    "LKfG6irsWkRU_oXhG1vtSEni_vUP_-MbH1Uo9pfPSZIf5cLeGP9WlHCNw29tL3kHv6wHd2yG-HTbhE3S9QDHztB53aWXAxVvJXb28xbjGGLdD2cvJcgT"
    "AYzP2MSn-6nSuJLgbdN3duWBtlIY71bSSdC0nnKLJZocy0768YyTSqNEmamwg3p72ivHkZpZNnnBPOCjbjIHKg144L_J8jdZEU5vpwVYH3R1gzAiUF_-"
    "85rznVRF9n9j2_xw1j_E0AaTzJJLlaTwxWiYLi_NFw"
)

PASSWORDS: Final = {
    "bcrypt": "$2y$04$vHm/K5we99CdvRskQvjgTOJj.Xy7IUMCyfQlG6n/EfDarMQo2rlIC",
    "apr1": "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
    "sha": "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "des": "abNANd1rDfiNc",
    "sha512": "$6$abcdefgh$ltjgWl6579NluT/Vi1nwEvcil.G5Nbc4NiXZaNGStk8PSwGfQv72N2CKPPrVACtLtip/cZ/1GM/O6IND4WQhG.",
}
"""The password `secret`, encrypted in each way that basic authentication takes, by the way's name."""


def token_of(subject: str, **claims: object) -> str:
    """A token signed with `SECRET`."""
    return sign_with_secret("SECRET", SECRET, {"sub": subject, **claims}, {})


@dataclass(frozen=True, slots=True)
class Pair:
    """A key pair in PEM."""

    certificate: bytes
    key: bytes


def make_pair(now_seconds: float, *, from_days: float = -1.0, to_days: float = 30.0) -> Pair:
    """A certificate that signs itself, valid for so many days before and after."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

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
