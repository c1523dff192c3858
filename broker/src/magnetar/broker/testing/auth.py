"""A broker that wants to know who is there, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from magnetar.auth.settings import TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.broker.resources import Resources
from magnetar.broker.settings.access import AccessSettings, PeerSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received
from magnetar.core.topic_name import NamespaceName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

ADMIN: Final = "admin"
TENANT_ADMIN: Final = "chief"
PROXY: Final = "proxy"
NAMESPACE: Final = NamespaceName("acme", "shop")
TOPIC: Final = "persistent://acme/shop/orders"


def access_settings(*, refresh_check_seconds: float = 60.0, anonymous: str = "", **changes: Any) -> AccessSettings:
    """Tokens signed with `SECRET`; `admin` may do everything, `proxy` speaks for others."""
    authentication = AuthenticationSettings(
        enabled=True,
        providers=(TOKEN_PROVIDER,),
        anonymous_role=anonymous,
        refresh_check_seconds=refresh_check_seconds,
        token=TokenSettings(secret_key=SECRET),
    )
    access = AccessSettings(
        authentication=authentication,
        authorization_enabled=True,
        super_user_roles=(ADMIN,),
        proxy_roles=(PROXY,),
        peers=PeerSettings(plugin="token", parameters="token:" + token_of(ADMIN)),
    )
    return replace(access, **changes)


def broker_settings(**changes: Any) -> BrokerSettings:
    """A broker with these `access_settings`."""
    return BrokerSettings(access=access_settings(**changes))


async def make_namespace(broker: MemoryBroker, **policies: Any) -> None:
    """Tenant `acme`, administered by `chief`, with `NAMESPACE`, whose policies are these beside the defaults."""
    resources = Resources(broker.store)
    await resources.documents.put(
        Resources.tenant_path(NAMESPACE.tenant), {"adminRoles": [TENANT_ADMIN], "allowedClusters": ["standalone"]}
    )
    bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
    document = {"replication_clusters": ["standalone"], "bundles": bundles, **policies}
    await resources.documents.put(Resources.namespace_path(NAMESPACE), document)


def grants(
    namespace: dict[str, list[str]] | None = None,
    topics: dict[str, dict[str, list[str]]] | None = None,
    subscriptions: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    """The policies' member `auth_policies`, which grants actions to roles."""
    return {
        "namespace_auth": namespace or {},
        "destination_auth": topics or {},
        "subscription_auth_roles": subscriptions or {},
    }


async def say(broker: MemoryBroker, subject: str | None, **connect: Any) -> tuple[ProtocolClient, Received | None]:
    """CONNECT with a token of a subject (None: with what `connect` says alone); what is answered, None: nothing."""
    client = await broker.open()
    if subject is not None:
        connect = {"auth_method_name": "token", "auth_data": token_of(subject).encode(), **connect}
    client.send(pb.BaseCommand.CONNECT, client_version="test", protocol_version=21, **connect)
    while not client.inbox and not client.ended:
        await client.news()
    return client, client.inbox.pop(0) if client.inbox else None


async def connected_as(broker: MemoryBroker, subject: str, **connect: Any) -> ProtocolClient:
    """A connection of somebody who was let in."""
    client, answer = await say(broker, subject, **connect)
    assert answer is not None
    assert answer.name == "CONNECTED", answer
    return client
