"""What the command `magnetar` says, takes and refuses."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from magnetar.cli.command_line import application
from typer.testing import CliRunner

HERE = Path(__file__).parent

PLAIN = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **PLAIN, **environment}
    )


def test_help_reads_well() -> None:
    """To renew the snapshot: run this with MAGNETAR_UPDATE_SNAPSHOTS=1 and read the difference."""
    shown = CliRunner().invoke(application, ["standalone", "--help"], env=PLAIN, prog_name="magnetar").output
    shown = "\n".join(line.rstrip() for line in shown.strip().splitlines()) + "\n"
    snapshot = HERE / "standalone_help.txt"
    if os.environ.get("MAGNETAR_UPDATE_SNAPSHOTS"):
        snapshot.write_text(shown)
    assert shown == snapshot.read_text()
    assert max(map(len, shown.splitlines())) <= 80


def test_no_arguments_show_the_commands() -> None:
    result = CliRunner().invoke(application, [], env=PLAIN, prog_name="magnetar")
    assert result.exit_code == 2
    assert "standalone" in result.output
    assert "Run a whole cluster in this process" in result.output


def test_version() -> None:
    result = CliRunner().invoke(application, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"magnetar {importlib.metadata.version('magnetar-cli')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["standalon"], "No such command 'standalon'"),
        (["standalone", "--port", "65536"], "65536 is not in the range"),
        (["standalone", "--http-port", "http"], "'http' is not a valid int"),
        (["standalone", "--log-level", "loud"], "'loud' is not one of"),
        (["standalone", "--dat", "x"], "No such option: --dat"),
        (["standalone", "extra"], "unexpected extra argument"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(application, arguments, env=PLAIN)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.slow
def test_it_runs_as_a_module_and_as_a_command() -> None:
    assert run("--version").stdout.startswith("magnetar ")
    script = Path(sys.executable).parent / "magnetar"
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("magnetar ")


@pytest.mark.slow
def test_a_wrong_option_leaves_with_2_and_no_traceback() -> None:
    finished = run("standalone", "--port", "x")
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell: str) -> None:
    # Without detection the shell is an argument; with it, tests would depend on what started them.
    shown = run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0, shown.stderr
    assert "complete" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number", "completions"),
    [
        ("magnetar sta", "1", ["standalone"]),
        ("magnetar standalone --ht", "2", ["--http-port"]),
        ("magnetar standalone --co", "2", ["--conf"]),
        ("magnetar standalone --log-level ", "3", ["debug", "info", "warning", "error"]),
    ],
)
def test_completion_completes(words: str, number: str, completions: list[str]) -> None:
    script = Path(sys.executable).parent / "magnetar"
    environment = {"_MAGNETAR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
    shown = subprocess.run([script], capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert shown.stdout.split() == completions


@pytest.mark.slow
def test_a_start_loads_nothing_that_can_wait() -> None:
    """Each of these costs 40 to 300 ms; the whole start takes 400."""
    script = """
import sys
import magnetar.cli.command_line, magnetar.standalone.run
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for package in (
        "aiohttp",
        "cramjam",
        "decimal",
        "grpc",
        "kazoo",
        "lz4",
        "msgspec",
        "prometheus_client",
        "pydantic",
        "rich",
    ):
        assert f"'{package}'" not in loaded
