#!/opt/magnetar/bin/python
"""What Spark on Kubernetes starts its pods with (Spark: DriverCommandFeatureStep, BasicExecutorFeatureStep).

entrypoint driver ARGUMENTS…    the driver: spark-submit in client mode, listening where SPARK_DRIVER_BIND_ADDRESS says
entrypoint executor             an executor; what it is and whose stands in SPARK_… variables
entrypoint COMMAND…             anything else, such as spark-submit itself in a Job, or python
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"

INIT: Final = ("/usr/bin/tini", "--")
"""Takes over what Python workers leave behind: Java, as a pod's first process, would not."""

TOLD_BY: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""The executor's arguments by the variables that its driver sets."""


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What is to run. `KeyError` for a variable that an executor lacks."""
    match arguments:
        case ["driver", *further]:
            address = environment["SPARK_DRIVER_BIND_ADDRESS"]
            bound = ["--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client"]
            return [f"{environment['SPARK_HOME']}/bin/spark-submit", *bound, *further]
        case ["executor", *_]:
            return executor(environment)
        case _:
            return list(arguments)


def executor(environment: Mapping[str, str]) -> list[str]:
    """One executor."""
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    told = [word for name, variable in TOLD_BY.items() for word in (name, environment[variable])]
    return [
        f"{environment['JAVA_HOME']}/bin/java",
        *java_options(environment),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        classpath(environment),
        BACKEND,
        *told,
    ]


def java_options(environment: Mapping[str, str]) -> list[str]:
    """One variable each, SPARK_JAVA_OPT_0 and so on: they may have blanks in them."""
    found = {int(name[15:]): value for name, value in environment.items() if re.fullmatch(r"SPARK_JAVA_OPT_\d+", name)}
    return [found[number] for number in sorted(found)]


def classpath(environment: Mapping[str, str]) -> str:
    """Configuration before jars, and what the application adds before Spark's own."""
    home = environment["SPARK_HOME"]
    places = [
        environment.get("SPARK_CONF_DIR", f"{home}/conf"),
        environment.get("HADOOP_CONF_DIR", ""),
        environment.get("SPARK_CLASSPATH", ""),
        f"{home}/jars/*",
    ]
    return ":".join(place for place in places if place)


def main() -> None:
    """Becomes what is to run."""
    words = command(sys.argv[1:], os.environ)
    os.execv(INIT[0], [*INIT, *words])


if __name__ == "__main__":
    main()
