"""What is left of the tools' prints, and which differences are found in it."""

from e2e.admin_cli import coverage, different, normal
from e2e.admin_cli.step import Outcome
from e2e.admin_cli.tools import Printed, Tool
from e2e.admin_cli.walks import WALKS

PAGES = {
    "--help": "Commands:\n  topics           Of topics\n  functions        Of functions\n",
    "topics --help": "Commands:\n  list             All\n                     of them\n  a-name-too-long-to-say-more\n",
}


class Helpful(Tool):
    """Has two groups of commands, and lists them as `pulsar-admin` does."""

    name = "pulsar-admin"

    def run(self, words: list[str]) -> Printed:
        return Printed(True, PAGES.get(" ".join(words), ""), "")

    def close(self) -> None:
        pass


def kept(command: str, output: str, *, succeeded: bool = True, complaint: str = "") -> object:
    return normal.outcome(command, Printed(succeeded, output, complaint), {"127.0.0.1:4711": "broker:8080"}).output


def test_the_runs_own_goes_and_the_rest_stays() -> None:
    assert kept("topics lookup x", "pulsar://127.0.0.1:4711") == ["pulsar://broker:8080"]
    assert kept("topics last-message-id x", '{"ledgerId": 17, "entryId": 9}') == {"ledgerId": "number", "entryId": 9}
    assert kept("topics terminate x", "terminated at 17:9:-1") == ["terminated at ledger:9"]
    assert kept("namespaces get-retention x", '{"retentionSizeInMB": 100}') == {"retentionSizeInMB": 100}
    assert kept("topics stats x", '{"msgRateIn": 0.3, "msgInCounter": 10}') == {
        "msgRateIn": "number",
        "msgInCounter": 10,
    }
    assert kept("namespaces permissions x", "app    [produce, consume]") == ["app    [consume, produce]"]


def test_help_after_a_mistake_and_a_brokers_trace_are_left_out() -> None:
    assert kept("x", "", succeeded=False, complaint="Missing: -n\nUsage: pulsar-admin x") == ["Missing: -n"]
    trace = "--- An unexpected error occurred in the server ---\n\nStacktrace: …"
    assert kept("x", "", succeeded=False, complaint=trace) == normal.BROKEN


def test_shapes_have_no_values() -> None:
    output = '{"acme/a": {"0x00000000_0xffffffff": {"n": 1}}, "acme/b": {"0x00000000_0xffffffff": {"m": "x"}}}'
    assert kept("broker-stats topics", output) == {"each": {"each": {"m": "text", "n": "number"}}}


def test_differences() -> None:
    wanted = [Outcome("a", True, {"x": 1, "y": 2}), Outcome("b", False, normal.BROKEN), Outcome("c", True, [])]
    got = [Outcome("a", True, {"x": 1, "z": 3}), Outcome("b", True, []), Outcome("c", False, ["why"])]
    assert normal.differences(wanted, got) == [
        (0, ".y is missing (2)"),
        (0, ".z is unexpected (3)"),
        (2, "failed, unlike Apache's: ['why'], Apache's []"),
    ]


def test_subcommands_that_nobody_walks_are_named() -> None:
    tool = Helpful("http://nowhere")
    found = coverage.subcommands(tool)
    assert found == ["topics list", "topics a-name-too-long-to-say-more"]
    assert coverage.unexplained(found, tool, WALKS["pulsar-admin"]) == ["topics a-name-too-long-to-say-more"]


def test_reasons_are_given_for_steps_that_are_walked() -> None:
    for tool, steps in WALKS.items():
        assert different.reasons(tool).keys() <= {step.command for step in steps}
