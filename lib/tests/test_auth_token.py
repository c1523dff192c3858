from __future__ import annotations

import base64
import json
from pathlib import Path

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.auth.credentials import AuthenticationFailed, Credentials, Identity
from magnetar.auth.settings import TokenSettings
from magnetar.auth.testing import (
    EC_PUBLIC_KEY,
    EC_TOKEN,
    LATE_SECONDS,
    LATE_TOKEN,
    RSA_PUBLIC_KEY,
    RSA_TOKEN,
    SECRET,
    SECRET_512,
    TILL_2036_SECONDS,
    TOKEN,
    TOKEN_512,
    TOKEN_TILL_2036,
)
from magnetar.auth.token import TIME_SECONDS_MAX, TokenProvider, _milliseconds
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError

DATA = "data:;base64,"


class FixedClock(SystemClock):
    def __init__(self, seconds: float = 1_800_000_000.0) -> None:
        self.seconds = seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


def provider(clock: FixedClock | None = None, **given_settings: str | float) -> TokenProvider:
    if "public_key" not in given_settings:
        given_settings.setdefault("secret_key", DATA + SECRET)
    return TokenProvider(TokenSettings(**given_settings), clock or FixedClock())  # type: ignore[arg-type]


async def role_of(checked_by: TokenProvider, token: str) -> str:
    return (await checked_by.authenticate(Credentials("token", token.encode()))).role


def made(secret: str = SECRET, **claims: object) -> str:
    return jwt.encode(claims, base64.b64decode(secret), "HS256")


async def test_tokens_of_apaches_tool_are_good() -> None:
    assert await role_of(provider(), TOKEN) == "producer"
    assert await role_of(provider(secret_key=DATA + SECRET_512), TOKEN_512) == "producer"
    assert await role_of(provider(public_key=DATA + RSA_PUBLIC_KEY), RSA_TOKEN) == "producer"
    assert await role_of(provider(public_key=DATA + EC_PUBLIC_KEY, public_algorithm="ES256"), EC_TOKEN) == "producer"


async def test_keys_come_from_files_paths_and_base64(tmp_path: Path) -> None:
    file = tmp_path / "secret key"
    file.write_bytes(base64.b64decode(SECRET))
    encoded = str(file).replace(" ", "%20")
    for key in (str(file), f"file://{encoded}", f"file:{encoded}", SECRET, DATA + SECRET):
        assert await role_of(provider(secret_key=key), TOKEN) == "producer"
    pem = tmp_path / "public.pem"
    lines = [RSA_PUBLIC_KEY[at : at + 64] for at in range(0, len(RSA_PUBLIC_KEY), 64)]
    pem.write_text("\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""]))
    assert await role_of(provider(public_key=f"file://{pem}"), RSA_TOKEN) == "producer"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"secret_key": "data:;base64,c2hvcnQ="}, "too short"),
        ({"secret_key": "file:///nowhere/key"}, "cannot be read"),
        ({"secret_key": "no key!"}, "neither"),
        ({"secret_key": "data:;base64,###"}, "not base64"),
        ({"public_key": DATA + SECRET}, "no public key"),
        ({"public_key": DATA + RSA_PUBLIC_KEY, "public_algorithm": "ES256"}, "tokenPublicAlg"),
        ({"public_key": DATA + RSA_PUBLIC_KEY, "public_algorithm": "none"}, "none"),
        ({"audience_claim": "aud"}, "tokenAudience"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        provider(None, **settings)


async def test_what_is_no_token_is_told_in_words() -> None:
    with pytest.raises(AuthenticationFailed, match=r"^the token is not valid: Not enough segments$"):
        await role_of(provider(), "nonsense")


async def test_expiry_and_beginning_with_skew() -> None:
    clock = FixedClock(TILL_2036_SECONDS - 1)
    checking, lenient = provider(clock), provider(clock, clock_skew_seconds=10.0)
    identity = await checking.authenticate(Credentials("token", TOKEN_TILL_2036.encode()))
    assert identity == Identity("producer", "token", TILL_2036_SECONDS * 1000)
    assert not identity.expired(clock.now_ms())
    clock.seconds += 2
    assert identity.expired(clock.now_ms())
    with pytest.raises(AuthenticationFailed, match="expired"):
        await role_of(checking, TOKEN_TILL_2036)
    assert await role_of(lenient, TOKEN_TILL_2036) == "producer"
    clock.seconds = LATE_SECONDS - 5
    assert await role_of(checking, LATE_TOKEN) == "late"
    later = made(sub="a", nbf=LATE_SECONDS)
    with pytest.raises(AuthenticationFailed, match="good in"):
        await role_of(checking, later)
    assert await role_of(lenient, later) == "a"


async def test_roles_from_other_claims() -> None:
    assert await role_of(provider(role_claim="roles"), made(roles=["a", "b"])) == "a"
    assert await role_of(provider(role_claim="name"), made(sub="x", name="y")) == "y"
    for token in (made(other="x"), made(sub=""), made(sub=[]), made(sub=["", 1])):
        with pytest.raises(AuthenticationFailed, match="no role"):
            await role_of(provider(), token)


async def test_audiences() -> None:
    checking = provider(audience_claim="aud", audience="here")
    assert await role_of(checking, made(sub="a", aud="here")) == "a"
    assert await role_of(checking, made(sub="a", aud=["there", "here"])) == "a"
    for token in (made(sub="a"), made(sub="a", aud="there"), made(sub="a", aud=[])):
        with pytest.raises(AuthenticationFailed, match="not for here"):
            await role_of(checking, token)


async def test_forged_tokens_are_nobodys() -> None:
    unsigned = jwt.encode({"sub": "admin"}, "", "none")
    # The public key is known to all: it must not pass for a secret.
    header, claims, signature = RSA_TOKEN.split(".")
    with_public = jwt.api_jws.PyJWS().encode(b'{"sub":"admin"}', b"x" * 32, "HS256")
    checking = provider(public_key=DATA + RSA_PUBLIC_KEY)
    forged = (unsigned, with_public, f"{header}.{claims[:-2]}xx.{signature}", TOKEN, "", " ", "a.b.c", "\x00")
    for token in forged:
        with pytest.raises(AuthenticationFailed):
            await role_of(checking, token)
    for token in (unsigned, RSA_TOKEN, TOKEN_512, made("A" * 43 + "=", sub="admin")):
        with pytest.raises(AuthenticationFailed):
            await role_of(provider(), token)


NUMBERS = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e308", "9" * 4000, "9" * 5000, "-1", "0", "-0.0", "1e-400"]
    + ["9007199254740992", "9007199254740993", "4102444800", "4102444800.5", "true", "false", "null", '"4102444800"']
    + ["[]", "{}", '"\\ud800"', '""', "[" * 5000 + "]" * 5000]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)


def signed(payload: str) -> str:
    """A good signature under whatever is said."""
    return jwt.api_jws.PyJWS().encode(payload.encode("utf-8", "surrogatepass"), base64.b64decode(SECRET), "HS256")


@settings(max_examples=300)
@given(st.sampled_from(["exp", "nbf", "iat", "sub", "aud"]), NUMBERS | JSON)
async def test_whatever_a_signed_token_says_it_is_taken_or_refused(claim: str, value: str) -> None:
    for checking in (PROVIDER, FOR_HERE):
        payload = f'{{"sub":"a","aud":"here","{claim}":{value}}}'
        try:
            identity = await checking.authenticate(Credentials("token", signed(payload).encode()))
        except AuthenticationFailed:
            continue
        # A role that the protocol can carry, and an end that can be compared with the time.
        assert identity.role.encode()
        assert identity.expired(0) in (True, False)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "9" * 4000, "9007199254740993", "true", '"1"', "[]"]
)
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_times_that_are_none_are_refused(claim: str, value: str) -> None:
    with pytest.raises(AuthenticationFailed, match=f"the token's claim {claim} is no (time|number)"):
        await role_of(PROVIDER, signed(f'{{"sub":"a","{claim}":{value}}}'))


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_the_furthest_times_are_times(claim: str) -> None:
    good = f'{{"sub":"a","{claim}":{-TIME_SECONDS_MAX},"exp":{TIME_SECONDS_MAX}}}'
    assert await role_of(PROVIDER, signed(good)) == "a"
    for seconds in (-TIME_SECONDS_MAX - 1, TIME_SECONDS_MAX + 1):
        with pytest.raises(AuthenticationFailed, match=f"the token's claim {claim} is no time"):
            await role_of(PROVIDER, signed(f'{{"sub":"a","{claim}":{seconds}}}'))


async def test_a_negative_time_is_long_ago() -> None:
    with pytest.raises(AuthenticationFailed, match="expired"):
        await role_of(PROVIDER, made(sub="a", exp=-1))
    assert await role_of(PROVIDER, made(sub="a", nbf=-1, iat=-1)) == "a"


@given(st.binary(max_size=200))
async def test_any_bytes_fail_cleanly(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        await PROVIDER.authenticate(Credentials("token", data))


PROVIDER = provider()
FOR_HERE = provider(audience_claim="aud", audience="here")


def test_bearer_header() -> None:
    assert PROVIDER.http_credentials("Bearer abc", None) == Credentials("token", b"abc")
    assert PROVIDER.http_credentials("Basic abc", None) is None
    assert PROVIDER.http_credentials("", None) is None


@pytest.mark.parametrize("value", ["soon", True, [1], {}])
def test_a_time_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(AuthenticationFailed, match="is no number"):
        _milliseconds({"exp": value}, "exp")
