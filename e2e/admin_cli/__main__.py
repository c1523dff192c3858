"""Walk through the tools' subcommands and print what differs from Apache's; `--record` takes the expectations anew."""

from __future__ import annotations

import argparse
import sys

from e2e.admin_cli import coverage, different, recording, targets
from e2e.admin_cli.walks import WALKS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.admin_cli", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what Apache's brokers make the tools print")
    parser.add_argument("--server", choices=["magnetar", "apache"], default="", help="whose brokers")
    parser.add_argument("--tool", choices=sorted(WALKS), default=None, help="one tool only")
    parser.add_argument("--verbose", action="store_true", help="name each command and how long it took")
    arguments = parser.parse_args()

    def told(line: str) -> None:
        if arguments.verbose:
            sys.stderr.write(line + "\n")

    failed = False
    with targets.running("apache" if arguments.record else arguments.server) as target:
        for name in [arguments.tool] if arguments.tool else WALKS:
            with recording.TOOLS[name](target.admin_url) as tool:
                subcommands = coverage.subcommands(tool)
                missed = coverage.unexplained(subcommands, tool, WALKS[name])
                outcomes = recording.walk(target, tool, told)
            if arguments.record:
                recording.save(name, outcomes)
            found = recording.differences(name, outcomes)
            unexplained, vanished = different.judge(target.name, name, outcomes, found)
            lines = [*unexplained, *(f"`{command}` differs no more" for command in vanished)]
            lines += [f"`{subcommand}` is neither walked nor left out" for subcommand in missed]
            differing = len({number for number, _ in found})
            counts = f"{len(subcommands)} subcommands, {len(outcomes)} steps, {differing} of them differ"
            sys.stdout.write("\n".join([*(f"{name} {line}" for line in lines), f"{name}: {counts}"]) + "\n")
            sys.stdout.flush()
            failed = failed or bool(lines)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
