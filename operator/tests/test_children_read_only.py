"""What is made for read-only brokers, of a cluster's own and over one that others run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from magnetar.cli.command_line import application
from magnetar.net.testing import TestAuthority
from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.children.control import control_environment
from magnetar.operator.children.naming import READER_LABEL
from magnetar.operator.children.owned import cluster_settings_without_effect
from magnetar.operator.children.policies import policy_children
from magnetar.operator.children.proxies import proxy_children
from magnetar.operator.children.read_only import READ_ONLY_SETTING, read_only_children
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.advice import what_to_correct
from magnetar.operator.plan.cluster.parts import one_of
from magnetar.operator.secrets import named_secrets, trouble_of
from operator_fakes.plan_builders import NOW, make_cluster
from typer.testing import CliRunner

NAME = "blue-read-only-broker"
OWN: dict[str, Any] = {"readOnlyBrokers": {"replicas": 2}}
LARGE: dict[str, Any] = {
    "settings": {"maxMessageSize": 1_000_000},
    "readOnlyBrokers": {
        "replicas": 2,
        "settings": {"brokerShutdownTimeoutMs": 30_000, READ_ONLY_SETTING: False},
        "resources": {"limits": {"memory": "8Gi"}},
        "pod": {"labels": {"team": "readers"}, "nodeSelector": {"zone": "b"}},
        "service": {
            "type": "LoadBalancer",
            "annotations": {"internal": "true"},
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
        },
    },
}
ATTACHED: dict[str, Any] = {
    "attach": {"clusterName": "pulsar-1"},
    "metadata": {"url": "zk:zookeeper.apache:2181/pulsar"},
    "readOnlyBrokers": {},
}
TOKEN: dict[str, Any] = ATTACHED | {
    "attach": {"credentials": {"secretName": "reader"}, "brokerTls": {"secretName": "authority"}}
}
PLUGIN: dict[str, Any] = ATTACHED | {
    "attach": {
        "credentials": {
            "secretName": "reader",
            "plugin": "org.apache.pulsar.client.impl.auth.AuthenticationBasic",
        }
    }
}
ACCESS: dict[str, Any] = {
    "tls": {"secretName": "certificate", "plainPorts": False},
    "authentication": {"token": {"secretName": "tokens"}},
}
SPECS = {
    "own": OWN,
    "large": LARGE,
    "own with access": OWN | ACCESS,
    "attached": ATTACHED,
    "token": TOKEN,
    "token with access": TOKEN | ACCESS,
    "plugin": PLUGIN,
}


def children(spec: dict[str, Any]) -> list[Manifest]:
    return read_only_children(make_cluster(**spec), 2)


def template(spec: dict[str, Any]) -> Any:
    return one_of(children(spec), "Deployment")["spec"]["template"]


def configuration(spec: dict[str, Any]) -> list[str]:
    text: str = one_of(children(spec), "ConfigMap")["data"]["broker.conf"]
    return text.splitlines()


def network_policies(cluster: ClusterContext) -> dict[str, Any]:
    found = policy_children(cluster, pod_monitors_known=True)
    return {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "NetworkPolicy"}


def test_without_a_wish_for_them_there_are_none() -> None:
    assert read_only_children(make_cluster(), 2) == []
    policies = policy_children(make_cluster(), pod_monitors_known=True)
    assert NAME not in {each["metadata"]["name"] for each in policies}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_they_are_brokers_under_another_name(spec: dict[str, Any]) -> None:
    deployment = one_of(children(spec), "Deployment")
    assert deployment["metadata"]["name"] == NAME
    broker = one_of(broker_children(make_cluster(**spec), 2), "Deployment")["spec"]["template"]["spec"]
    pod = template(spec)["spec"]
    [container], [like] = pod["containers"], broker["containers"]
    assert container["name"] == "read-only-broker", "as its label: by it its state is found"
    for same in ("image", "args", "ports", "readinessProbe", "livenessProbe", "securityContext"):
        assert container[same] == like[same]
    assert pod["terminationGracePeriodSeconds"] == broker["terminationGracePeriodSeconds"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] != "tmp")
    wanted = deployment["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= template(spec)["metadata"]["labels"].items()
    assert wanted == one_of(children(spec), "Service")["spec"]["selector"]


def test_no_selector_of_others_finds_them() -> None:
    cluster = make_cluster(**OWN)
    labels = template(OWN)["metadata"]["labels"]
    for others in (broker_children(cluster, 1), proxy_children(cluster, 1)):
        assert not one_of(others, "Service")["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_broker_takes_their_configuration(spec: dict[str, Any], tmp_path: Path) -> None:
    lines = configuration(spec)
    assert f"{READ_ONLY_SETTING}=true" in lines
    authority = TestAuthority(tmp_path / "authority")
    issued = authority.issue("reader")
    for file, content in (
        ("tls.crt", issued.certificate_file.read_bytes()),
        ("tls.key", issued.key_file.read_bytes()),
        ("ca.crt", authority.certificate_file.read_bytes()),
        ("secret.key", b"k" * 32),
        ("broker-token", b"a.b.c"),
        ("token", b"a.b.c"),
    ):
        (tmp_path / file).write_bytes(content)
    text = "\n".join(lines)
    for folder in ("/tls/", "/token/", "/credentials/", "/broker-tls/"):
        text = text.replace(f"={folder}", f"={tmp_path}/").replace(f"file://{folder}", f"file://{tmp_path}/")
    (tmp_path / "broker.conf").write_text(text)
    environment = {"PULSAR_PREFIX_advertisedAddress": "10.1.2.3"}
    environment |= {variable["name"]: variable["value"] for variable in control_environment()}
    for variable in template(spec)["spec"]["containers"][0]["env"]:
        if "secretKeyRef" in variable.get("valueFrom", {}):
            environment[variable["name"]] = '{"userId":"reader","password":"secret"}'
    arguments = ["broker", "run", "--conf", str(tmp_path / "broker.conf"), "--check"]
    result = CliRunner().invoke(application, arguments, env=environment)
    assert result.exit_code == 0, f"{text}\n{result.output}"
    assert "without effect" not in result.output


def test_what_people_set_reaches_them_and_what_makes_them_read_only_stays() -> None:
    lines = configuration(LARGE)
    assert {"maxMessageSize=1000000", "brokerShutdownTimeoutMs=30000", f"{READ_ONLY_SETTING}=true"} <= set(lines)
    assert cluster_settings_without_effect(make_cluster(**LARGE)) == [
        f"spec.readOnlyBrokers.settings.{READ_ONLY_SETTING} (spec.readOnlyBrokers is about such brokers, spec.broker "
        "about the others)"
    ]
    pod = template(LARGE)
    assert pod["metadata"]["labels"]["team"] == "readers"
    assert pod["spec"]["nodeSelector"] == {"zone": "b"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "8Gi"}
    service = one_of(children(LARGE), "Service")
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert service["metadata"]["annotations"] == {"internal": "true"}


def test_they_change_nothing_of_the_others() -> None:
    for make in (broker_children, proxy_children):
        assert make(make_cluster(), 2) == make(make_cluster(**OWN), 2)


def test_the_other_cluster_is_found_by_its_own_name_and_store() -> None:
    lines = configuration(ATTACHED)
    assert {"clusterName=pulsar-1", "metadataStoreUrl=zk:zookeeper.apache:2181/pulsar"} <= set(lines)
    assert "configurationMetadataStoreUrl=zk:zookeeper.apache:2181/pulsar" in lines
    assert "clusterName=blue" in configuration(ATTACHED | {"attach": {}})
    # Where the other one is ours, its network policies let them reach bookies and ZooKeeper.
    assert template(ATTACHED)["metadata"]["labels"][READER_LABEL] == "true"
    assert READER_LABEL not in template(OWN)["metadata"]["labels"]


def test_its_brokers_are_shown_a_token_that_may_be_renewed() -> None:
    lines = configuration(TOKEN)
    assert "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken" in lines
    assert "brokerClientAuthenticationParameters=file:///credentials/token" in lines
    assert {"brokerClientTlsEnabled=true", "brokerClientTrustCertsFilePath=/broker-tls/ca.crt"} <= set(lines)
    secrets = {volume["secret"]["secretName"] for volume in template(TOKEN)["spec"]["volumes"] if "secret" in volume}
    assert secrets == {"blue-control", "reader", "authority"}
    # Also where clients of these brokers need tokens of their own.
    assert "brokerClientAuthenticationParameters=file:///credentials/token" in configuration(TOKEN | ACCESS)
    assert "brokerClientAuthenticationParameters=file:///token/broker-token" in configuration(OWN | ACCESS)


def test_a_plugins_parameters_never_stand_in_a_configuration() -> None:
    assert "brokerClientAuthenticationParameters=" in configuration(PLUGIN)
    [variable] = [each for each in template(PLUGIN)["spec"]["containers"][0]["env"] if "valueFrom" in each][1:]
    assert variable["name"] == "PULSAR_PREFIX_brokerClientAuthenticationParameters"
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "reader", "key": "parameters"}}


def test_settings_of_an_attached_cluster_without_effect_are_told_once() -> None:
    given: dict[str, Any] = {"settings": {"clusterName": "mine", "brokerClientTlsEnabled": False}}
    assert cluster_settings_without_effect(make_cluster(**TOKEN, **given)) == [
        "spec.settings.brokerClientTlsEnabled (use spec.attach.brokerTls)",
        "spec.settings.clusterName (use spec.attach.clusterName)",
    ]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_policies_let_clients_in_and_the_operator(spec: dict[str, Any]) -> None:
    cluster = make_cluster(**spec)
    policy = network_policies(cluster)[NAME]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "read-only-broker"
    served = {port["containerPort"] for port in template(spec)["spec"]["containers"][0]["ports"]}
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == served
    by_operator = [rule for rule in policy["ingress"] if "namespaceSelector" in str(rule.get("from", ""))]
    assert [[port["port"] for port in rule["ports"]] for rule in by_operator] == [[3183, 8080]]
    budgets = [each for each in policy_children(cluster, pod_monitors_known=True) if "Budget" in each["kind"]]
    assert NAME in {each["metadata"]["name"] for each in budgets}


def test_attached_there_are_no_policies_of_what_others_run() -> None:
    found = policy_children(make_cluster(**ATTACHED), pod_monitors_known=True)
    assert {(each["kind"], each["metadata"]["name"]) for each in found} == {
        ("PodDisruptionBudget", NAME),
        ("NetworkPolicy", NAME),
        ("PodMonitor", "blue"),
    }


def secrets_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {wanted.name: wanted for wanted in named_secrets(make_cluster(**spec).spec)}


def words(spec: dict[str, Any], name: str, **content: str) -> str:
    data = {key.replace("_", "."): text for key, text in content.items()}
    trouble = trouble_of(secrets_of(spec)[name], {"data": data}, NOW)
    return trouble.message if trouble is not None else ""


def test_secrets_for_the_other_cluster_are_looked_at() -> None:
    assert set(secrets_of(TOKEN)) == {"reader", "authority"}
    missing = trouble_of(secrets_of(TOKEN)["reader"], None, NOW)
    assert missing is not None
    assert "spec.attach.credentials.secretName" in missing.message
    assert "it has no token" in words(TOKEN, "reader", parameters="eA==")
    assert words(TOKEN, "reader", token="eA==") == ""
    assert "it has no parameters" in words(PLUGIN, "reader", token="eA==")
    assert words(PLUGIN, "reader", parameters="eA==") == ""
    assert "it has no ca.crt" in words(TOKEN, "authority")
    assert words(TOKEN, "authority", ca_crt="eA==")


def test_tokens_of_brokers_and_proxies_are_asked_for_only_where_they_are_shown() -> None:
    def lacking(spec: dict[str, Any]) -> str:
        return words(spec | ACCESS, "tokens")

    assert "no broker-token and no proxy-token" in lacking(OWN)
    assert "token" not in lacking(TOKEN).partition(": it has")[2].replace("secret.key", "")
    assert "no broker-token" in lacking(ATTACHED)
    assert "proxy-token" not in lacking(ATTACHED)


def test_a_refusal_says_which_field_is_to_be_corrected() -> None:
    deployment, service = one_of(children(OWN), "Deployment"), one_of(children(OWN), "Service")
    invalid = "spec.template.spec.tolerations[0].effect: Unsupported value"
    assert what_to_correct("PulsarCluster", deployment, invalid) == "Correct spec.readOnlyBrokers.pod.tolerations"
    assert what_to_correct("PulsarCluster", service, "spec.type: Unsupported value") == (
        "Correct spec.readOnlyBrokers.service"
    )
