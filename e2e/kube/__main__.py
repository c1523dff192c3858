"""`python -m e2e.kube`: the tests on a real Kubernetes, images built first; ends with a table of what was tried.

The cluster is the one that KUBECONFIG names, else kind if it is installed, else a node of our own, which is built and
started, and stopped again afterwards if this run has started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from e2e.kube.parts import QUICK
from e2e.kubernetes.current import Current, current
from e2e.kubernetes.node import Node
from e2e.kubernetes.places import places
from e2e.kubernetes.processes import NodeTrouble
from images.build import COMPONENTS, REPOSITORY, VERSION, BuildFailed, NoBuilder

NEXT: Final = f"{VERSION}-next"
"""The same images under another name: what an upgrade goes to."""
HERE: Final = Path(__file__).resolve().parent
TEST_SECONDS_MAX: Final = "900"
"""For one test: some drain gigabytes, and roll out everything on a slow machine."""
CANNOT_START: Final = 3
"""Exit code: there is no cluster, and none can be made on this machine."""


def say(text: str) -> None:
    """One line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def end_in_order() -> None:
    """SIGTERM, such as of `timeout`, ends this as Ctrl-C does: tests end, and a node that was started is stopped."""

    def end(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def prepare(chosen: Current, *, quick: bool) -> dict[str, str]:
    """Images for the cluster, and what tests have to know of it. Spark's is large, and for the full part only."""
    environment = {**os.environ, **chosen.environment, "MAGNETAR_E2E_CLUSTER": chosen.kind}
    if "MAGNETAR_E2E_REPOSITORY" not in environment:
        say("building images")
        servers = tuple(component for component in COMPONENTS if component != "spark")
        chosen.build_images(servers if quick else COMPONENTS, version=VERSION)
        chosen.build_images(servers, version=NEXT)
        environment |= {
            "MAGNETAR_E2E_REPOSITORY": REPOSITORY,
            "MAGNETAR_E2E_VERSION": VERSION,
            "MAGNETAR_E2E_NEXT_VERSION": NEXT,
        }
    return environment


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.kube", description=__doc__, epilog="Further arguments are pytest's, such as -k bookies."
    )
    parser.add_argument("--part", choices=("quick", "full"), default="full", help="quick: what fits into 20 minutes")
    parser.add_argument("--keep", action="store_true", help="leave a node that this run starts running")
    options, further = parser.parse_known_args()
    end_in_order()
    was_up = Node(places()).is_up
    try:
        chosen = current(say)
    except (NodeTrouble, OSError) as trouble:
        say(f"there is no Kubernetes to test on: {trouble}")
        return CANNOT_START
    try:
        environment = prepare(chosen, quick=options.part == "quick")
        files = QUICK if options.part == "quick" else (str(HERE),)
        if options.part == "quick":
            environment.setdefault("MAGNETAR_E2E_FIGURES", "told")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--timeout",
            TEST_SECONDS_MAX,
            *files,
            *further,
        ]
        return subprocess.run(command, env=environment, check=False).returncode
    except (NodeTrouble, NoBuilder, BuildFailed) as trouble:
        say(f"the cluster cannot be prepared: {trouble}")
        return 1
    finally:
        if chosen.node is not None and not was_up and not options.keep:
            chosen.node.down("state")


if __name__ == "__main__":
    sys.exit(main())
