from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.spark.brokers.client_factory import credentials_of, make_client, tls_of
from magnetar.spark.errors import BadOption
from magnetar.spark.options.connection import ConnectionOptions

PLUGINS = "org.apache.pulsar.client.impl.auth."


def options_of(**given: object) -> ConnectionOptions:
    return ConnectionOptions(**{"service_url": "pulsar://127.0.0.1:6650", **given})  # type: ignore[arg-type]


def test_a_token_is_shown_alike_by_either_option(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    for options in (
        options_of(token="secret"),
        options_of(token=f"file://{file}"),
        options_of(auth_plugin=PLUGINS + "AuthenticationToken", auth_params="token:secret"),
        options_of(auth_plugin=PLUGINS + "AuthenticationToken", auth_params=f"file://{file}"),
    ):
        assert credentials_of(options).shown() == ("token", b"secret")
        assert credentials_of(options).http_headers()["Authorization"] == "Bearer secret"


def test_user_and_password() -> None:
    options = options_of(
        auth_plugin=PLUGINS + "AuthenticationBasic", auth_params='{"userId": "anna", "password": "secret"}'
    )
    assert credentials_of(options).shown() == ("basic", b"anna:secret")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"auth_plugin": PLUGINS + "AuthenticationAthenz", "auth_params": "{}"}, "AuthenticationAthenz is not known"),
        ({"auth_plugin": PLUGINS + "AuthenticationToken", "auth_params": "file:///nowhere/token"}, "cannot be read"),
        ({"auth_plugin": PLUGINS + "AuthenticationToken"}, "has no token"),
        ({"auth_plugin": PLUGINS + "AuthenticationBasic", "auth_params": "secret"}, "authParams must be"),
        ({"service_url": "http://127.0.0.1:8080"}, "service.url"),
        ({"service_url": "pulsar+ssl://a:6651", "tls_trust_certificates_file": "/nowhere/ca"}, "tlsTrustCerts"),
        (
            {
                "auth_plugin": PLUGINS + "AuthenticationTls",
                "auth_params": "tlsCertFile:/nowhere/c,tlsKeyFile:/nowhere/k",
            },
            "needs TLS",
        ),
    ],
)
def test_what_cannot_be_used_is_named_without_the_secret(given: dict[str, object], named: str) -> None:
    with pytest.raises(BadOption, match="option") as caught:
        make_client(options_of(**given))
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "brokerClient" not in str(caught.value)


def test_the_certificate_is_checked_as_the_options_say() -> None:
    def checks(**given: object) -> tuple[bool, bool]:
        options = options_of(**given)
        context = tls_of(options, credentials_of(options)).context
        return context.check_hostname, context.verify_mode.name == "CERT_REQUIRED"

    assert checks() == (True, True)
    assert checks(tls_hostname_verification=False) == (False, True)
    assert checks(tls_allow_insecure=True) == (False, False)
