"""What a broker.conf says about who may come and who may do what."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.auth.settings import BASIC_PROVIDER, TLS_PROVIDER, TOKEN_PROVIDER
from magnetar.auth.testing import SECRET
from magnetar.broker.process import broker_process_settings
from magnetar.broker.settings.access import AccessSettings
from magnetar.broker.settings.names import known_names
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings


def access(**given: str) -> AccessSettings:
    settings = GivenSettings(known_names())
    named = {"clusterName": "x", "metadataStoreUrl": "memory:", "advertisedAddress": "10.0.0.1", **given}
    for name, value in named.items():
        settings.add(name, value, "test")
    found = broker_process_settings(settings).broker.access
    assert settings.without_effect() == []
    return found


TOKENS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKEN_PROVIDER,
    "tokenSecretKey": "data:;base64," + SECRET,
}


def test_nobody_is_asked_unless_it_is_set() -> None:
    assert access() == AccessSettings()
    assert not access().authentication.enabled


def test_everything_that_can_be_set() -> None:
    found = access(
        **TOKENS,
        tokenAuthClaim="role",
        tokenAudienceClaim="aud",
        tokenAudience="here",
        tokenAllowedClockSkewSeconds="3",
        tokenPublicAlg="ES256",
        anonymousUserRole="guest",
        authenticationRefreshCheckSeconds="30",
        authorizationEnabled="true",
        authorizationAllowWildcardsMatching="true",
        authenticateOriginalAuthData="true",
        authenticateMetricsEndpoint="true",
        superUserRoles="a,b",
        proxyRoles="p",
        brokerClientAuthenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
        brokerClientAuthenticationParameters="token:x",
        brokerClientTlsEnabled="true",
        brokerClientTrustCertsFilePath="/ca.pem",
        tlsAllowInsecureConnection="true",
    )
    authentication = found.authentication
    assert (authentication.token.role_claim, authentication.token.audience) == ("role", "here")
    assert (authentication.token.clock_skew_seconds, authentication.refresh_check_seconds) == (3, 30)
    assert authentication.anonymous_role == "guest"
    assert found.authorization_enabled
    assert found.wildcards
    assert found.authenticate_original_data
    assert found.metrics_authenticated
    assert (found.super_user_roles, found.proxy_roles) == (("a", "b"), ("p",))
    assert (found.peers.parameters, found.peers.tls_enabled) == ("token:x", True)
    assert found.peers.tls.trust_certificates_file == Path("/ca.pem")
    assert found.peers.tls.allow_insecure


def test_users_from_a_file(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("a:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")
    providers = f"{BASIC_PROVIDER},{TLS_PROVIDER}"
    found = access(authenticationEnabled="true", authenticationProviders=providers, basicAuthConf=str(users))
    assert found.authentication.providers == (BASIC_PROVIDER, TLS_PROVIDER)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"authenticationProviders": "org.example.Mine"}, f"org.example.Mine; there are {TOKEN_PROVIDER}"),
        ({"authenticationEnabled": "true"}, "authenticationProviders"),
        ({**TOKENS, "tokenSecretKey": "file:///nowhere"}, "tokenSecretKey.*cannot be read"),
        ({**TOKENS, "tokenSecretKey": ""}, "tokenSecretKey or tokenPublicKey"),
        ({"authorizationEnabled": "true"}, "authorizationEnabled needs authenticationEnabled"),
        ({"authorizationProvider": "org.example.Mine"}, "org.example.Mine; there is .*PulsarAuthorizationProvider"),
        (
            {
                "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "brokerClientAuthenticationParameters": "file:///nowhere",
            },
            "brokerClientAuthenticationParameters: /nowhere cannot be read",
        ),
        ({"brokerServicePort": ""}, "brokerServicePort is empty"),
        ({"webServicePort": "6650"}, "brokerServicePort and webServicePort are both 6650"),
        ({"controlPort": "8080", "controlHost": "127.0.0.1"}, "webServicePort and controlPort are both 8080"),
        ({"brokerClientTlsEnabledWithKeyStore": "true"}, "brokerClientTlsEnabledWithKeyStore"),
        (
            {**TOKENS, "authenticationProviders": BASIC_PROVIDER, "basicAuthConf": "data:;base64,YQ=="},
            "line 1 is not user:password",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(given: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        access(**given)
