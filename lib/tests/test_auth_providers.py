from __future__ import annotations

import asyncio
import base64
from hashlib import sha1
from pathlib import Path

import pytest
from magnetar.auth.authenticator import Authenticator
from magnetar.auth.basic import BasicProvider, read_users
from magnetar.auth.credentials import AuthenticationFailed, Credentials, Identity, common_name
from magnetar.auth.passwords import password_fits
from magnetar.auth.settings import (
    BASIC_PROVIDER,
    TLS_PROVIDER,
    TOKEN_PROVIDER,
    AuthenticationSettings,
    TokenSettings,
)
from magnetar.auth.testing import PASSWORDS, SECRET, TOKEN
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError

CERTIFICATE = {"subject": ((("organizationName", "o"),), (("commonName", "first"),), (("commonName", "robot"),))}


def users(**passwords: str) -> str:
    lines = "\n".join(f"{user}:{encrypted}" for user, encrypted in passwords.items())
    return "data:;base64," + base64.b64encode(lines.encode()).decode()


@pytest.mark.parametrize("kind", PASSWORDS)
def test_every_kind_of_password(kind: str) -> None:
    assert password_fits(b"secret", PASSWORDS[kind])
    for wrong in (b"Secret", b"", b"secret ", b"sec\x00ret", b"x" * 100):
        assert not password_fits(wrong, PASSWORDS[kind])


def test_damaged_passwords_fit_nobody() -> None:
    for encrypted in ("$2y$99$x", "$apr1$", "$apr1$abcdefgh$", "{SHA}", "x", "*", "!!"):
        assert not password_fits(b"secret", encrypted)


@pytest.mark.parametrize("content", [b"user", b":x", b"user:", b"a:b:c"])
def test_files_that_are_not_htpasswds(content: bytes) -> None:
    with pytest.raises(SettingError, match="line 1"):
        read_users(content)


async def test_users_and_passwords(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# who may come\n\nann:{PASSWORDS['apr1']}\nbob:{PASSWORDS['bcrypt']}\n")
    for setting in (str(file), f"file://{file}"):
        provider = BasicProvider(setting)
        for _ in range(2):
            assert (await provider.authenticate(Credentials("basic", b"bob:secret"))).role == "bob"
        for wrong in (b"bob:secret2", b"ann:", b"eve:secret", b"bob", b""):
            with pytest.raises(AuthenticationFailed):
                await provider.authenticate(Credentials("basic", wrong))


async def test_a_password_is_no_longer_than_people_type() -> None:
    long = b"x" * 1_000_000
    encrypted = "{SHA}" + base64.b64encode(sha1(long, usedforsecurity=False).digest()).decode()
    with pytest.raises(AuthenticationFailed):
        await BasicProvider(users(bob=encrypted)).authenticate(Credentials("basic", b"bob:" + long))


async def test_who_was_right_once_is_found_at_once() -> None:
    provider = BasicProvider(users(bob=PASSWORDS["bcrypt"].replace("$04$", "$04$")))
    await provider.authenticate(Credentials("basic", b"bob:secret"))
    checking = provider.authenticate(Credentials("basic", b"bob:secret"))
    with pytest.raises(StopIteration) as answer:  # No thread is asked, so there is nothing to wait for.
        checking.send(None)
    assert answer.value.value == Identity("bob", "basic")


async def test_basic_header() -> None:
    provider = BasicProvider(users(bob=PASSWORDS["sha"]))
    header = "Basic " + base64.b64encode(b"bob:secret").decode()
    assert provider.http_credentials(header, None) == Credentials("basic", b"bob:secret")
    assert provider.http_credentials("Bearer x", None) is None
    with pytest.raises(AuthenticationFailed):
        provider.http_credentials("Basic ###", None)


def test_the_most_specific_common_name_counts() -> None:
    assert common_name(CERTIFICATE) == "robot"
    assert common_name({}) == common_name(None) == ""


def all_providers(anonymous: str = "") -> Authenticator:
    settings = AuthenticationSettings(
        enabled=True,
        providers=(TOKEN_PROVIDER, BASIC_PROVIDER, TLS_PROVIDER),
        anonymous_role=anonymous,
        token=TokenSettings(secret_key=SECRET),
        basic_users=users(bob=PASSWORDS["sha"]),
    )
    return Authenticator(settings, SystemClock())


async def test_each_method_has_its_provider() -> None:
    authenticator = all_providers()
    shown = (
        (Credentials("token", TOKEN.encode()), "producer"),
        (Credentials("basic", b"bob:secret"), "bob"),
        (Credentials("tls", b"", CERTIFICATE), "robot"),
    )
    for credentials, role in shown:
        assert (await authenticator.authenticate(credentials)).role == role
    for refused in (Credentials("none"), Credentials("athenz", b"x"), Credentials("tls"), Credentials("token", b"x")):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate(refused)


async def test_who_shows_nothing_may_be_anonymous() -> None:
    authenticator = all_providers("guest")
    assert (await authenticator.authenticate(Credentials("none"))).role == "guest"
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(Credentials("token", b"x"))
    assert (await authenticator.authenticate_http(None, "", None)).role == "guest"
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate_http("token", "Bearer x", None)


async def test_requests_are_tried_with_every_provider_unless_they_name_one() -> None:
    authenticator = all_providers()
    basic = "Basic " + base64.b64encode(b"bob:secret").decode()
    cases = (
        (None, f"Bearer {TOKEN}", None, "producer"),
        (None, basic, None, "bob"),
        (None, "", CERTIFICATE, "robot"),
        ("tls", f"Bearer {TOKEN}", CERTIFICATE, "robot"),
        ("token", f"Bearer {TOKEN}", CERTIFICATE, "producer"),
    )
    for method, header, certificate, role in cases:
        assert (await authenticator.authenticate_http(method, header, certificate)).role == role
    for method, header in ((None, ""), (None, "Bearer x"), ("basic", f"Bearer {TOKEN}"), ("what", basic), ("tls", "")):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate_http(method, header, None)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"providers": ("org.example.Mine",)}, "org.example.Mine; there are .*ProviderToken"),
        ({"providers": (TOKEN_PROVIDER,)}, "tokenSecretKey"),
        ({"providers": (BASIC_PROVIDER,)}, "basicAuthConf"),
        ({"providers": ()}, "nobody could connect"),
        ({"providers": (TLS_PROVIDER,), "refresh_check_seconds": 0}, "RefreshCheckSeconds"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        AuthenticationSettings(enabled=True, **settings)  # type: ignore[arg-type]


async def test_guesses_do_not_take_all_threads() -> None:
    provider = BasicProvider(users(bob=PASSWORDS["bcrypt"]))
    guesses = [provider.authenticate(Credentials("basic", b"bob:%d" % number)) for number in range(20)]
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert all(isinstance(outcome, AuthenticationFailed) for outcome in outcomes)
