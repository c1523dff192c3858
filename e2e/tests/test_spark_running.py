"""How scripts are run that use Spark, tried with scripts that use none; which environments are kept."""

import os
import sys
from pathlib import Path

import pytest

from e2e.spark import environments
from e2e.spark.running import ScriptFailed, Spark

pytestmark = pytest.mark.slow

BEGINNING = "import json, pathlib, sys, time\ntold, answer = map(pathlib.Path, sys.argv[1:])\n"


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    configuration = {"spark.master": "local[1]"}
    return Spark(python=Path(sys.executable), java_home=tmp_path, folder=tmp_path / "runs", configuration=configuration)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(BEGINNING + text)
    return path


def test_answers(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/somewhere/else")
    told = script(
        tmp_path,
        "import os\n"
        "conf = pathlib.Path(os.environ['SPARK_CONF_DIR'], 'spark-defaults.conf').read_text()\n"
        "answer.write_text(json.dumps([json.loads(told.read_text()), 'SPARK_HOME' in os.environ, conf]))",
    )
    arguments, has_home, configuration = spark.run(told, {"a": 1})
    assert arguments == {"a": 1}
    assert not has_home
    assert "spark.master local[1]\n" in configuration
    assert "spark.driver.memory 1g\n" in configuration


def test_failures_show_the_log(spark: Spark, tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match=r"ended with 1;(?s:.)*ValueError: of this kind"):
        spark.run(script(tmp_path, "raise ValueError('of this kind')"), None)


def test_what_takes_too_long_is_killed(spark: Spark, tmp_path: Path) -> None:
    text = "(told.parent / 'pid').write_text(str(__import__('os').getpid()))\ntime.sleep(60)"
    with pytest.raises(ScriptFailed, match="no answer in 1 s"):
        spark.run(script(tmp_path, text), None, timeout_s=1)
    pid = int((tmp_path / "runs" / "run-0" / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_file_is_waited_for(spark: Spark, tmp_path: Path) -> None:
    running = spark.start(script(tmp_path, "(told.parent / 'made').touch()\ntime.sleep(60)"), None)
    running.wait_for_file(tmp_path / "runs" / "run-0" / "made", timeout_s=30)
    running.kill()
    ended = spark.start(script(tmp_path, ""), None)
    with pytest.raises(ScriptFailed, match="there is no"):
        ended.wait_for_file(tmp_path / "never", timeout_s=30)


def test_environments_that_were_not_used_for_longest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_E2E_CACHE", str(tmp_path))
    kept = tmp_path / "spark" / "environments"
    for age, version in enumerate(("1", "2", "3", "4", "5")):
        folder = kept / f"pyspark-{version}-python-3.11"
        folder.mkdir(parents=True)
        (folder / "ready").touch()
        os.utime(folder / "ready", (1_000_000 - age, 1_000_000 - age))
    # Using the oldest one makes it the newest; nothing has to be made.
    assert environments.python_with("5", "3.11") == kept / "pyspark-5-python-3.11/bin/python"
    assert sorted(path.name[8] for path in kept.glob("pyspark-*")) == ["1", "2", "3", "5"]


def test_a_java_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(environments.Unfit, match="apt-get install openjdk-6-jre-headless"):
        environments.java_home(6)
