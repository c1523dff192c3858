"""What pods of the Spark image become, by the arguments and variables that Spark gives them."""

from __future__ import annotations

import pytest

from images.spark.entrypoint import command, java_options

HERE = {"SPARK_HOME": "/opt/spark", "JAVA_HOME": "/opt/java"}
EXECUTOR = {
    **HERE,
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "archive-exec-3",
}


def test_a_driver_is_spark_submit_in_client_mode() -> None:
    arguments = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py", "archive"]
    told = command(arguments, {**HERE, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.5"})
    assert told[:5] == [
        "/opt/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.5", "--deploy-mode", "client"
    ]  # fmt: skip
    assert told[5:] == arguments[1:]


def test_an_executor_is_what_its_variables_say() -> None:
    told = command(["executor"], {**EXECUTOR, "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_CLASSPATH": "/more.jar"})
    assert told[:6] == [
        "/opt/java/bin/java", "-Da=b c", "-Xms512m", "-Xmx512m", "-cp", "/opt/spark/conf:/more.jar:/opt/spark/jars/*"
    ]  # fmt: skip
    assert told[6].endswith("KubernetesExecutorBackend")
    assert told[told.index("--podName") + 1] == "archive-exec-3"
    assert told[told.index("--hostname") + 1] == "10.0.0.7"


def test_java_options_come_in_the_order_of_their_numbers() -> None:
    found = java_options({"SPARK_JAVA_OPT_10": "last", "SPARK_JAVA_OPT_2": "first", "SPARK_JAVA_OPTIONS": "none"})
    assert found == ["first", "last"]


def test_an_executor_without_a_driver_is_refused() -> None:
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_POD_NAME"):
        command(["executor"], {name: value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_POD_NAME"})


def test_anything_else_is_a_command() -> None:
    assert command(["spark-submit", "--version"], HERE) == ["spark-submit", "--version"]
