"""What a cluster's report has, and what it leaves out."""

from __future__ import annotations

from magnetar.operator.plugin.collect import find_cluster, see_cluster
from magnetar.operator.plugin.reporting import collect_report
from operator_fakes.plugin_fakes import FakeKubernetes, cluster_manifest, pod_manifest


async def test_no_file_of_a_report_has_what_is_named_like_a_secret() -> None:
    settings = {"brokerClientAuthenticationParameters": "token:hunter2", "tlsKeyStorePassphrase": "hunter3"}
    environment = [{"name": "PASSWORD", "value": "hunter4"}, {"name": "DATA_KEY", "value": "hunter5"}]
    sidecar = {"name": "more", "args": ["--password=hunter6", "--api-key", "hunter7", "--file=shown"]}
    broker = {"settings": settings, "pod": {"env": environment, "sidecars": [sidecar]}}
    pod = pod_manifest("demo-broker-a", "broker")
    pod["spec"]["containers"].append(sidecar)
    kubernetes = FakeKubernetes(cluster_manifest(spec={"broker": broker}), pod)
    manifest = await find_cluster(kubernetes, None)
    found = await collect_report(kubernetes, await see_cluster(kubernetes, None), manifest, logs=False)
    assert {"cluster.yaml", "status.json", "objects/pod.yaml"} <= found.files.keys()
    assert {name: text for name, text in found.files.items() if b"hunter" in text} == {}
    assert b"--file=shown" in found.files["objects/pod.yaml"]
