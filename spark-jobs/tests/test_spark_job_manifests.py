"""The manifests of jobs: well-formed, restricted, and with arguments that the jobs take."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from magnetar.spark.jobs.__main__ import app

MANIFESTS = Path(__file__).parent.parent / "manifests"
PATHS = {
    "Job": lambda document: document["spec"],
    "CronJob": lambda document: document["spec"]["jobTemplate"]["spec"],
}


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((MANIFESTS / name).read_text()) if one is not None]


JOBS = sorted(
    path.name for path in MANIFESTS.glob("*.yaml") if any(one["kind"] in PATHS for one in documents(path.name))
)


def job_of(name: str) -> dict[str, Any]:
    [job] = [PATHS[one["kind"]](one) for one in documents(name) if one["kind"] in PATHS]
    found: dict[str, Any] = job
    return found


def assert_restricted(pod: dict[str, Any]) -> None:
    """The Pod Security Standard of that name."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}


def split_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings of Spark, and the job's own arguments."""
    place = arguments.index("/etc/magnetar-spark/job.py")
    settings = [one for flag, one in itertools.pairwise(arguments[:place]) if flag == "--conf"]
    return dict(one.split("=", 1) for one in settings), arguments[place + 1 :]


def test_there_is_one_for_each_job() -> None:
    named = {split_arguments(job_of(name)["template"]["spec"]["containers"][0]["args"])[1][0] for name in JOBS}
    assert named == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined] # Typer says Command.


@pytest.mark.parametrize("name", JOBS)
def test_jobs_run_spark_submit_in_restricted_pods(name: str) -> None:
    job = job_of(name)
    pod = job["template"]["spec"]
    assert_restricted(pod)
    assert pod["restartPolicy"] == "Never"
    assert pod["serviceAccountName"] == "magnetar-spark"
    [container] = pod["containers"]
    assert container["command"] == ["spark-submit"]
    settings, arguments = split_arguments(container["args"])
    assert settings["spark.kubernetes.container.image"] == container["image"] == "localhost/magnetar/spark:dev"
    assert settings["spark.driver.host"] == "$(POD_IP)"
    # Executors go with their driver.
    assert settings["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert {one["name"] for one in container["env"]} >= {"POD_NAME", "POD_NAMESPACE", "POD_IP"}
    assert container["envFrom"] == [{"configMapRef": {"name": "magnetar-spark"}}]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.archive.options.claimName"
    mounted = any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    # A plan is written by its driver alone.
    assert (settings.get(claim) == "magnetar-archive") == (mounted and arguments[0] != "load-planning")


@pytest.mark.parametrize("name", JOBS)
def test_arguments_are_understood(name: str) -> None:
    _, arguments = split_arguments(job_of(name)["template"]["spec"]["containers"][0]["args"])
    assert all(isinstance(one, str) for one in arguments)
    command = typer.main.get_command(app).commands[arguments[0]]  # type: ignore[attr-defined] # Typer says Command.
    given = ["--service-url", "pulsar://of-the-environment:6650", *arguments[1:]]
    command.make_context(arguments[0], given, resilient_parsing=False).close()


def test_what_is_common() -> None:
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in documents("common.yaml")}
    role = by_kind["Role", "magnetar-spark"]
    binding = by_kind["RoleBinding", "magnetar-spark"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == ["magnetar-spark"]
    assert ("ServiceAccount", "magnetar-spark") in by_kind
    pods = next(rule for rule in role["rules"] if "pods" in rule["resources"])
    assert {"create", "watch", "delete"} <= set(pods["verbs"])
    assert not any("*" in rule["verbs"] + rule["resources"] or "secrets" in rule["resources"] for rule in role["rules"])
    assert set(by_kind["ConfigMap", "magnetar-spark"]["data"]) == {"PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL"}
    files = by_kind["ConfigMap", "magnetar-spark-files"]["data"]
    compile(files["job.py"], "job.py", "exec")
    executor = yaml.safe_load(files["executor.yaml"])
    assert executor["kind"] == "Pod"
    assert_restricted(executor["spec"])
    settings = dict(
        line.split(None, 1) for line in files["spark-defaults.conf"].splitlines() if not line.startswith("#")
    )
    assert settings["spark.submit.deployMode"] == "client"
    assert settings["spark.kubernetes.executor.podTemplateFile"] == "/etc/magnetar-spark/executor.yaml"
    assert settings["spark.kubernetes.executor.podTemplateContainerName"] == executor["spec"]["containers"][0]["name"]


def test_an_archive_is_not_made_by_two_at_a_time() -> None:
    [document] = documents("archive-cronjob.yaml")
    assert document["spec"]["concurrencyPolicy"] == "Forbid"
    once, hourly = (job_of(name)["template"]["spec"] for name in ("archive.yaml", "archive-cronjob.yaml"))
    assert once == hourly


def test_no_jobs_file_takes_the_volume_with_it() -> None:
    """`kubectl delete -f` is how a job is made room for; what it has archived stays."""
    holding = [
        path.name
        for path in sorted(MANIFESTS.glob("*.yaml"))
        if any(one["kind"] == "PersistentVolumeClaim" for one in documents(path.name))
    ]
    assert holding == ["storage.yaml"]
    [claim] = documents("storage.yaml")
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for name in JOBS
        for volume in job_of(name)["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {claim["metadata"]["name"]}
