from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from magnetar.auth.keys import ALGORITHMS, family, read_data
from magnetar.auth.plugin import ClientCredentials
from magnetar.auth.testing import EC_PUBLIC_KEY, EC_TOKEN, LATE_TOKEN, SECRET, SECRET_512, TOKEN, TOKEN_512
from magnetar.auth.token_making import (
    new_key_pair,
    new_secret_key,
    shown,
    sign_with_private,
    sign_with_secret,
    validated,
)
from magnetar.core.errors import SettingError

PACKAGE = "org.apache.pulsar.client.impl.auth."


def test_tokens_as_the_plugin_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    for parameters in ("token:abc", "abc", '{"token":"abc"}', f"file://{file}", f"file:{file}"):
        assert ClientCredentials(PACKAGE + "AuthenticationToken", parameters).shown() == ("token", b"abc")
    credentials = ClientCredentials("token", f"file:{file}")
    file.write_text("def")
    assert credentials.http_headers() == {"X-Pulsar-Auth-Method-Name": "token", "Authorization": "Bearer def"}
    file.unlink()
    with pytest.raises(OSError, match="token"):
        credentials.data()


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "be read: No such file"), (b"\n", "empty"), (b"a=1\nb=2\n", "no token"), (b"a\xff", "no token")],
)
def test_a_wrong_file_of_a_token_is_told_at_once(tmp_path: Path, content: bytes | None, told: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingError, match=f"brokerClientAuthenticationParameters: {file} .*{told}"):
        ClientCredentials("token", f"file://{file}")


def test_users_and_certificates() -> None:
    parameters = json.dumps({"userId": "bob", "password": "a:b"})
    basic = ClientCredentials(PACKAGE + "AuthenticationBasic", parameters)
    assert basic.shown() == ("basic", b"bob:a:b")
    header = basic.http_headers()["Authorization"]
    assert base64.b64decode(header.removeprefix("Basic ")) == b"bob:a:b"
    for text in ("tlsCertFile:/a,tlsKeyFile:/b", '{"tlsCertFile":"file:///a","tlsKeyFile":"/b"}'):
        tls = ClientCredentials(PACKAGE + "AuthenticationTls", text)
        assert tls.certificate_files == (Path("/a"), Path("/b"))
        assert tls.shown() == ("tls", b"")
    assert ClientCredentials("tls").certificate_files is None


def test_nothing_to_show() -> None:
    for plugin in ("", PACKAGE + "AuthenticationDisabled"):
        credentials = ClientCredentials(plugin)
        assert credentials.shown() == ("none", b"")
        assert credentials.http_headers() == {}


@pytest.mark.parametrize(
    ("plugin", "parameters"),
    [
        ("AuthenticationAthenz", ""),
        ("AuthenticationToken", ""),
        ("AuthenticationToken", "{bad"),
        ("AuthenticationBasic", "bob"),
        ("AuthenticationBasic", '{"userId":"bob"}'),
        ("AuthenticationTls", "tlsCertFile:/a"),
    ],
)
def test_what_a_plugin_does_not_take(plugin: str, parameters: str) -> None:
    with pytest.raises(SettingError, match="brokerClient"):
        ClientCredentials(PACKAGE + plugin, parameters)


def test_tokens_are_made_as_apaches_tool_makes_them() -> None:
    assert sign_with_secret("k", SECRET, {"sub": "producer"}, {}) == TOKEN
    assert sign_with_secret("k", SECRET_512, {"sub": "producer"}, {}) == TOKEN_512
    assert shown(LATE_TOKEN) == ('{"kid":"a","alg":"HS256"}', '{"sub":"late","exp":1795250576}')
    assert validated(EC_TOKEN, public_key=EC_PUBLIC_KEY) == '{"sub":"producer"}'
    with pytest.raises(SettingError, match="not good"):
        validated(TOKEN_512, secret_key=SECRET)
    with pytest.raises(SettingError, match="no token"):
        shown("abc")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "RS256", "ES256", "ES384", "ES512"])
def test_new_keys_sign_and_check(algorithm: str) -> None:
    if family(algorithm) == "HMAC":
        secret = base64.b64encode(new_secret_key(algorithm)).decode()
        token = sign_with_secret("k", secret, {"sub": "a"}, {"kid": "1"})
        assert validated(token, secret_key=secret) == '{"sub":"a"}'
    else:
        private, public = (base64.b64encode(key).decode() for key in new_key_pair(algorithm))
        token = sign_with_private("k", private, {"sub": "a"}, {"kid": "1"}, algorithm)
        assert validated(token, public_key=public) == '{"sub":"a"}'
        with pytest.raises(SettingError, match="this key signs with"):
            sign_with_private("k", private, {"sub": "a"}, {}, "HS256")
    header = json.loads(shown(token)[0])
    assert header == {"alg": algorithm, "kid": "1"}


def test_a_key_without_a_slash_is_no_path() -> None:
    key = base64.b64encode(b"m" * 300)
    assert b"/" not in key
    assert read_data("k", key.decode()) == b"m" * 300
    with pytest.raises(SettingError, match="neither") as refused:
        read_data("k", "secret" * 100 + "!")
    assert "secretsecret" not in str(refused.value)


def test_algorithms_without_such_keys() -> None:
    with pytest.raises(SettingError, match="no secret key"):
        new_secret_key("RS256")
    with pytest.raises(SettingError, match="no pair"):
        new_key_pair("HS256")
    assert len(ALGORITHMS) == 12
    with pytest.raises(SettingError, match="not one of"):
        family("MD5")
