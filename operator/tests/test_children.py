"""What the operator makes: rendered for small and large resources, and read by the programs that it is for."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from magnetar.cli.command_line import application
from magnetar.core.crashes import DIRECTORY_VARIABLE
from magnetar.net.testing import TestAuthority
from magnetar.operator.children.bookies import bookie_children, default_pool
from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.context import ClusterContext, Defaults
from magnetar.operator.children.control import TOKEN_KEY, control_environment, token_secret
from magnetar.operator.children.metadata_job import metadata_job
from magnetar.operator.children.naming import TEMPLATE_ANNOTATION, OwnerResource
from magnetar.operator.children.policies import policy_children
from magnetar.operator.children.proxies import proxy_children
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.kubernetes.kinds import KINDS, Manifest
from magnetar.operator.rbac import rules
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.quantities import size_bytes
from typer.testing import CliRunner

DEFAULTS = Defaults(image_repository="images.test/magnetar", version="1.2.3")

LARGE: dict[str, Any] = {
    "settings": {"metadataStoreSessionTimeoutMillis": 20_000},
    "imagePullSecrets": ["pull"],
    "metadata": {"zookeeper": {"replicas": 1, "storage": {"size": "1Gi", "storageClassName": "fast"}}},
    "bookkeeper": {
        "ensembleSize": 3,
        "replicas": 4,
        "storage": {"journal": {"size": "5Gi"}, "ledgers": {"size": "20Gi", "count": 2}},
        "settings": {"journalSyncData": True},
    },
    "broker": {
        "replicas": 3,
        "settings": {"maxMessageSize": 1_000_000},
        "resources": {"limits": {"memory": "4Gi"}},
        "pod": {
            "annotations": {"team": "messages"},
            "labels": {"cost": "centre"},
            "env": [{"name": "TZ", "value": "UTC"}],
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "sidecars": [{"name": "ship", "image": "logs:1"}],
        },
    },
    "proxy": {
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}, "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    },
    "monitoring": {"podMonitors": "Always", "labels": {"release": "prometheus"}},
}
TLS = {"tls": {"secretName": "certificate"}}
TLS_ONLY = {"tls": {"secretName": "certificate", "plainPorts": False}}
TLS_BOTH_WAYS = {"tls": {"secretName": "certificate", "plainPorts": False, "requireClientCertificates": True}}
TOKENS = {"authentication": {"token": {"secretName": "tokens"}, "superUserRoles": ["admin"]}}
PUBLIC_KEY = {"authentication": {"token": {"secretName": "tokens", "key": "Public", "brokerRole": "inner"}}}
SHARED = {"metadata": {"url": "zk:store:2181/a", "configurationUrl": "zk:shared:2181"}}
NO_PROXY: dict[str, Any] = {"proxy": {"replicas": 0}}
SPECS = {
    "small": {},
    "large": LARGE,
    "tls": TLS,
    "tls_only": TLS_ONLY,
    "tls_both_ways": TLS_BOTH_WAYS | TOKENS,
    "tokens": TOKENS,
    "public_key": PUBLIC_KEY,
    "shared": SHARED,
    "no_proxy": NO_PROXY,
}


def cluster_of(spec: dict[str, Any]) -> ClusterContext:
    owner = OwnerResource(kind="PulsarCluster", name="blue", namespace="team", uid="u-1")
    return ClusterContext(owner=owner, spec=msgspec.convert(spec, PulsarClusterSpec), defaults=DEFAULTS)


def pool_of(cluster: ClusterContext) -> BookieSpec:
    return msgspec.convert(default_pool(cluster)["spec"], BookieSpec)


def everything(spec: dict[str, Any]) -> list[Manifest]:
    cluster = cluster_of(spec)
    pool = OwnerResource(kind="Bookie", name="blue", namespace="team", uid="u-2")
    return [
        token_secret(cluster, "secret"),
        *zookeeper_children(cluster),
        metadata_job(cluster),
        default_pool(cluster),
        *bookie_children(cluster, pool, pool_of(cluster), 3),
        *broker_children(cluster, 2),
        *proxy_children(cluster, 2),
        *policy_children(cluster, pod_monitors_known=True),
    ]


def only(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def templates(manifests: list[Manifest]) -> dict[str, Any]:
    return {
        each["metadata"]["name"]: each["spec"]["template"] for each in manifests if "template" in each.get("spec", {})
    }


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_child_is_named_labelled_and_owned(spec: dict[str, Any]) -> None:
    seen = set()
    for each in everything(spec):
        metadata = each["metadata"]
        assert each["apiVersion"] == KINDS[each["kind"]].api_version
        assert (each["kind"], metadata["name"]) not in seen
        seen.add((each["kind"], metadata["name"]))
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])
        assert metadata["namespace"] == "team"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "blue"
        assert metadata["labels"]["app.kubernetes.io/name"] == "magnetar"
        assert metadata["ownerReferences"][0]["controller"] is True
        assert all(len(str(value)) <= 63 for value in metadata["labels"].values())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_pods_meet_the_restricted_profile_and_write_nowhere_but_their_volumes(spec: dict[str, Any]) -> None:
    for template in templates(everything(spec)).values():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        [container] = [each for each in pod["containers"] if each["name"] != "ship"]
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]
        claims = {
            claim["metadata"]["name"]
            for each in everything(spec)
            for claim in each.get("spec", {}).get("volumeClaimTemplates", ())
        }
        known = {volume["name"] for volume in pod["volumes"]} | claims
        assert {mount["name"] for mount in container["volumeMounts"]} <= known


def test_what_people_set_on_pods_reaches_them() -> None:
    template = templates(everything(LARGE))["blue-broker"]
    pod, [container, sidecar] = template["spec"], template["spec"]["containers"]
    assert template["metadata"]["annotations"]["team"] == "messages"
    assert template["metadata"]["labels"]["cost"] == "centre"
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "broker"
    assert {"name": "TZ", "value": "UTC"} in container["env"]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert container["resources"]["requests"] == {"cpu": "200m", "memory": "512Mi"}
    assert pod["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert (
        pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "broker"
    )
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert sidecar == {"name": "ship", "image": "logs:1"}
    service = only(everything(LARGE), "Service", "blue-proxy")
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert service["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_crashes_are_kept_on_a_volume_that_outlives_the_container(spec: dict[str, Any]) -> None:
    found = templates(everything(spec))
    folders = {name: crash_folders(template) for name, template in found.items() if crash_folders(template)}
    ledgers = "/ledgers-0" if spec is LARGE else "/ledgers"
    expected = {"blue-bookie": [f"{ledgers}/crashes"], "blue-broker": ["/tmp/crashes"], "blue-proxy": ["/tmp/crashes"]}
    assert folders == {name: expected[name] for name in expected.keys() & found.keys()}
    for name, [folder] in folders.items():
        mounts = found[name]["spec"]["containers"][0]["volumeMounts"]
        assert folder.rpartition("/")[0] in {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}


def test_people_may_keep_crashes_elsewhere() -> None:
    own = [{"name": DIRECTORY_VARIABLE, "value": "/mnt/crashes"}]
    template = templates(everything({"broker": {"pod": {"env": own}}}))["blue-broker"]
    assert crash_folders(template) == ["/mnt/crashes"]


def crash_folders(template: dict[str, Any]) -> list[str]:
    variables = template["spec"]["containers"][0]["env"]
    return [each["value"] for each in variables if each["name"] == DIRECTORY_VARIABLE]


def test_labels_of_people_never_hide_pods_from_their_selectors() -> None:
    spec = {"broker": {"pod": {"labels": {"app.kubernetes.io/component": "other"}}}}
    template = templates(everything(spec))["blue-broker"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "broker"


def test_rendering_twice_gives_the_same() -> None:
    assert everything(LARGE) == everything(copy.deepcopy(LARGE))


CHANGES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("a broker's setting", {"broker": {"settings": {"maxMessageSize": 1}}}, {"blue-broker"}),
    ("a proxy's setting", {"proxy": {"settings": {"maxConcurrentLookupRequests": 1}}}, {"blue-proxy"}),
    ("a bookie's setting", {"bookkeeper": {"settings": {"journalSyncData": False}}}, {"blue-bookie"}),
    ("the ensemble", {"bookkeeper": {"ensembleSize": 3}}, {"blue-broker"}),
    ("the number of brokers", {"broker": {"replicas": 5}}, set()),
    ("the number of bookies", {"bookkeeper": {"replicas": 5}}, set()),
    ("the Service", {"proxy": {"service": {"type": "NodePort"}}}, set()),
    ("the policy of deletion", {"deletionPolicy": "Delete"}, set()),
    ("who balances", {"balance": {"driver": "Operator"}}, set()),
    ("an environment variable", {"broker": {"pod": {"env": [{"name": "A", "value": "b"}]}}}, {"blue-broker"}),
    (
        "ZooKeeper's memory",
        {"metadata": {"zookeeper": {"resources": {"limits": {"memory": "2Gi"}}}}},
        {"blue-zookeeper"},
    ),
    ("the size of volumes", {"bookkeeper": {"storage": {"ledgers": {"size": "60Gi"}}}}, set()),
    ("the version", {"version": "9"}, {"blue-broker", "blue-proxy", "blue-bookie", "blue-zookeeper"}),
]


@pytest.mark.parametrize(("change", "restarted"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_a_change_restarts_what_it_must_and_no_more(change: dict[str, Any], restarted: set[str]) -> None:
    def digests(spec: dict[str, Any]) -> dict[str, str]:
        found = templates(everything(spec))
        return {
            name: each["metadata"].get("annotations", {}).get(TEMPLATE_ANNOTATION, "") for name, each in found.items()
        }

    before, after = digests({}), digests(change)
    assert {name for name in before if "init" not in name and before[name] != after.get(name)} == restarted


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_can_never_be_changed_stays_whatever_is_asked_for(spec: dict[str, Any]) -> None:
    def fixed(manifests: list[Manifest]) -> dict[str, Any]:
        return {
            each["metadata"]["name"]: (each["spec"]["selector"], each["spec"].get("serviceName"))
            for each in manifests
            if each["kind"] in {"StatefulSet", "Deployment"}
        }

    before, after = fixed(everything({})), fixed(everything(spec))
    assert all(before[name] == after[name] for name in before.keys() & after.keys())


def test_each_kind_may_be_made_by_the_operators_role() -> None:
    allowed = {
        (group, resource)
        for rule in rules(cluster_wide=False)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "create" in rule["verbs"]
    }
    plurals = {"NetworkPolicy": "networkpolicies"}
    for each in everything(LARGE):
        group = each["apiVersion"].rpartition("/")[0]
        assert (group, plurals.get(each["kind"], each["kind"].lower() + "s")) in allowed


def configuration(spec: dict[str, Any], file: str) -> str:
    [found] = [each["data"][file] for each in everything(spec) if file in each.get("data", {})]
    return str(found)


COMPONENTS = [("bookie", "bookkeeper.conf"), ("broker", "broker.conf"), ("proxy", "proxy.conf")]
READ = [
    (spec, *component) for spec in SPECS for component in COMPONENTS if (spec, component[0]) != ("no_proxy", "proxy")
]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that Secrets hold, in one folder."""
    folder = tmp_path_factory.mktemp("secrets")
    authority = TestAuthority(folder / "authority")
    issued = authority.issue("proxy")
    for file, source in (
        ("tls.crt", issued.certificate_file),
        ("tls.key", issued.key_file),
        ("ca.crt", authority.certificate_file),
    ):
        (folder / file).write_bytes(source.read_bytes())
    (folder / "secret.key").write_bytes(b"k" * 32)
    for name in ("broker-token", "proxy-token"):
        (folder / name).write_text("a.b.c")
    made = ["--output-private-key", str(folder / "private.key"), "--output-public-key", str(folder / "public.key")]
    assert CliRunner().invoke(application, ["tokens", "create-key-pair", *made]).exit_code == 0
    return folder


@pytest.mark.parametrize(("spec", "component", "file"), READ)
def test_components_take_their_configuration(
    spec: str, component: str, file: str, secrets: Path, tmp_path: Path
) -> None:
    content = configuration(SPECS[spec], file).replace("/tls/", f"{secrets}/").replace("/token/", f"{secrets}/")
    (tmp_path / file).write_text(content)
    controls = {variable["name"]: variable["value"] for variable in control_environment()}
    environment = {"PULSAR_PREFIX_advertisedAddress": "10.1.2.3", **controls}
    arguments = [component, "run", "--conf", str(tmp_path / file), "--check"]
    result = CliRunner().invoke(application, arguments, env=environment)
    assert result.exit_code == 0, f"{content}\n{result.output}"
    assert "without effect" not in result.output


def test_proxies_show_their_token_to_brokers_only() -> None:
    given = {"proxy": {"replicas": 1, "settings": {"checkActiveBrokers": False}}}
    assert "checkActiveBrokers=true\n" in configuration(given, "proxy.conf")


def test_journals_leave_room_on_their_volumes() -> None:
    settings = dict(line.split("=", 1) for line in configuration({}, "bookkeeper.conf").splitlines())
    # The one that is written, one that a checkpoint still needs, one more while it is slow.
    files = int(settings["journalMaxBackups"]) + 3
    assert files * int(settings["journalMaxSizeMB"]) * 1024**2 <= 0.95 * size_bytes("1Gi")
    own = {"bookkeeper": {"settings": {"journalMaxBackups": 5}}}
    assert "journalMaxBackups=5\n" in configuration(own, "bookkeeper.conf")


@pytest.mark.parametrize("name", ["blue-bookie", "blue-broker", "blue-proxy"])
def test_pods_find_the_control_token_where_a_new_one_is_written(name: str) -> None:
    manifests = everything({})
    secret = only(manifests, "Secret", "blue-control")
    spec = templates(manifests)[name]["spec"]
    [volume] = [each for each in spec["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    # One that is mounted by its sub-path would never change.
    assert "subPath" not in mount
    assert list(secret["data"]) == [TOKEN_KEY]
    file = {"name": "PULSAR_PREFIX_controlTokenFile", "value": f"{mount['mountPath']}/{TOKEN_KEY}"}
    assert file in spec["containers"][0]["env"]


def test_people_may_override_what_is_a_default_and_not_what_holds_the_cluster_together() -> None:
    spec = {"broker": {"settings": {"managedLedgerDefaultAckQuorum": 1, "clusterName": "other"}}}
    lines = configuration(spec, "broker.conf").splitlines()
    assert "managedLedgerDefaultAckQuorum=1" in lines
    assert "clusterName=blue" in lines


def test_the_default_pool_leaves_the_number_to_whoever_scales_it() -> None:
    assert "replicas" not in default_pool(cluster_of({}))["spec"]
    assert default_pool(cluster_of({"bookkeeper": {"replicas": 4}}))["spec"]["replicas"] == 4


def test_without_proxies_clients_are_sent_to_the_brokers_service() -> None:
    arguments = metadata_job(cluster_of(NO_PROXY))["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "pulsar://blue-broker.team.svc.cluster.local:6650" in arguments
    assert not [each for each in everything(NO_PROXY) if each["metadata"]["name"] == "blue-proxy"]


@pytest.mark.parametrize(
    ("spec", "urls"),
    [
        ({}, {"-url": "http://A:8080", "-url-tls": ""}),
        (TLS, {"-url": "http://A:8080", "-url-tls": "https://A:8443"}),
        (TLS_ONLY, {"-url": "", "-url-tls": "https://A:8443"}),
    ],
)
def test_the_metadata_has_the_addresses_that_are_served(spec: dict[str, Any], urls: dict[str, str]) -> None:
    arguments = metadata_job(cluster_of(spec))["spec"]["template"]["spec"]["containers"][0]["args"]
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    for end, url in urls.items():
        web = url.replace("A", "blue-proxy.team.svc.cluster.local")
        assert given[f"--web-service{end}"] == web
        service = web.replace("https:", "pulsar+ssl:").replace("http:", "pulsar:")
        assert given[f"--broker-service{end}"] == service.replace("8080", "6650").replace("8443", "6651")


def test_a_store_that_is_there_is_used_and_none_is_made() -> None:
    manifests = everything(SHARED)
    assert not [each for each in manifests if "zookeeper" in each["metadata"]["name"]]
    assert "metadataStoreUrl=zk:store:2181/a" in configuration(SHARED, "broker.conf").splitlines()
    assert "configurationMetadataStoreUrl=zk:shared:2181" in configuration(SHARED, "broker.conf").splitlines()


def test_network_policies_let_in_who_has_to_come_in() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in everything({}) if each["kind"] == "NetworkPolicy"}
    assert set(policies) == {"blue-zookeeper", "blue-bookie", "blue-broker", "blue-proxy"}
    for name, spec in policies.items():
        ports = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        [template] = [each for key, each in templates(everything({})).items() if key == name]
        served = {port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert ports == served
    assert not [each for each in everything({"networkPolicies": False}) if each["kind"] == "NetworkPolicy"]


def test_images_may_be_named_as_registries_name_them() -> None:
    version = "0123456789" * 6 + "ab-" + "c" * 40
    made = cluster_of({"imageRepository": "registry.test:5000/team/", "version": version})
    [deployment] = [child for child in broker_children(made, 1) if child["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.test:5000/team/broker:{version}"
    label = deployment["metadata"]["labels"]["app.kubernetes.io/version"]
    assert label == version[:62]
