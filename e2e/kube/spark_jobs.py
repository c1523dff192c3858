"""The jobs' manifests, changed as their README says and run: what tests of Spark on Kubernetes share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import yaml

from e2e.kube.conftest import REPOSITORY, ROOT, VERSION
from e2e.kube.kubectl import Manifest, Namespace, name_of, wait_for

MANIFESTS: Final = ROOT / "spark-jobs" / "manifests"
IMAGE: Final = f"{REPOSITORY}/spark:{VERSION}"
IMAGE_OF_MANIFESTS: Final = "localhost/magnetar/spark:dev"
JOB_FILE: Final = "/etc/magnetar-spark/job.py"
"""In a job's arguments: what stands before is Spark's, what follows the job's own."""
CLAIM: Final = "magnetar-archive"
JOB_SECONDS_MAX: Final = 420.0
"""Three Javas on a machine of two processors that runs a cluster too."""
ENDED: Final = frozenset({"Succeeded", "Failed"})


def small(executors: int) -> dict[str, str]:
    """Settings of an application that fits beside a cluster."""
    return {
        "spark.driver.memory": "512m",
        "spark.executor.instances": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1024m",
        "spark.kubernetes.executor.request.cores": "100m",
        # Of 200 tasks of a shuffle most would have nothing to do.
        "spark.sql.shuffle.partitions": str(2 * executors),
        # All take part, however long the last takes to start.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
    }


def settings_words(settings: Mapping[str, str]) -> list[str]:
    """As `spark-submit` takes them."""
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def manifests(file: str) -> list[Manifest]:
    """The documents of one of the jobs' files."""
    return [document for document in yaml.safe_load_all((MANIFESTS / file).read_text()) if document]


def prepare(namespace: Namespace) -> None:
    """What all jobs need, and the volume of the archive."""
    for file in ("common.yaml", "storage.yaml"):
        namespace("apply", "-f", str(MANIFESTS / file))


def changed(manifest: Manifest, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> Manifest:
    """A Job or CronJob with our image, further settings and arguments, and a driver for a small machine."""
    job = manifest["spec"]["jobTemplate"] if manifest["kind"] == "CronJob" else manifest
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["image"] = IMAGE
    container["resources"] = {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    its_own = [word.replace(IMAGE_OF_MANIFESTS, IMAGE) for word in container["args"]]
    first = its_own.index(JOB_FILE)
    container["args"] = [*its_own[:first], *settings_words(settings), *its_own[first:], *arguments]
    return manifest


def job_of(file: str, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> Manifest:
    """A file's Job, which fails at once if it fails."""
    [job] = manifests(file)
    job["spec"]["backoffLimit"] = 0
    return changed(job, settings, arguments)


def run_job(namespace: Namespace, job: Manifest) -> str:
    """Make it, and wait for its end; gives the driver's log."""
    namespace.apply(job)
    return log_of_job(namespace, name_of(job))


def log_of_job(namespace: Namespace, job: str) -> str:
    """The driver's, once the job has ended well."""
    found = lambda: [pod for pod in pods_of_job(namespace, job) if pod["status"]["phase"] in ENDED]  # noqa: E731
    [pod] = wait_for(f"{job} has ended", found, JOB_SECONDS_MAX, 1.0)
    return log_of_ended(namespace, name_of(pod))


def pods_of_job(namespace: Namespace, job: str) -> list[Manifest]:
    """Its drivers."""
    return namespace.all("pods", f"job-name={job}")


def log_of_ended(namespace: Namespace, pod: str) -> str:
    """Of a driver, which must have ended well, and have had all the rights that it wanted."""
    log = namespace("logs", pod)
    phase = namespace.get("pod", pod)["status"]["phase"]
    assert phase == "Succeeded", f"{pod}: {phase}\n{log[-8_000:]}"
    assert "forbidden" not in log.lower(), [line for line in log.splitlines() if "forbidden" in line.lower()]
    return log


def run_on_volume(namespace: Namespace, script: str, *arguments: str) -> str:
    """What a Python script says in a pod that may read the archive's volume."""
    template: Manifest = yaml.safe_load((MANIFESTS / "pod-template.yaml").read_text())
    spec = template["spec"]
    [container] = spec["containers"]
    container |= {"image": IMAGE, "args": ["python", "-c", script, *arguments]}
    container["volumeMounts"].append({"name": "archive", "mountPath": "/archive", "readOnly": True})
    spec["volumes"].append({"name": "archive", "persistentVolumeClaim": {"claimName": CLAIM}})
    spec |= {"restartPolicy": "Never"}
    namespace.apply({**template, "metadata": {"name": "look"}})
    phase = wait_for(
        "the volume is looked at",
        lambda: found if (found := namespace.get("pod", "look")["status"]["phase"]) in ENDED else None,
        120,
    )
    said = namespace("logs", "look")
    namespace("delete", "pod", "look")
    assert phase == "Succeeded", said
    return said


def archived(log: str) -> int:
    """How many messages an archive job says it has archived."""
    found = re.search(r"archived ([\d,]+) messages", log)
    assert found, log[-4_000:]
    return int(found[1].replace(",", ""))
