"""`python -m e2e.kubernetes COMMAND`: our own single-node Kubernetes, and the one that tests run on."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from e2e.kubernetes.current import current
from e2e.kubernetes.install import install
from e2e.kubernetes.node import Node
from e2e.kubernetes.places import API, places
from e2e.kubernetes.processes import NodeTrouble
from images.build import COMPONENTS, VERSION, BuildFailed, NoBuilder

CALLED: Final = {"given": "the cluster of the kubeconfig", "kind": "a kind cluster", "own": "our own node"}


def say(text: str) -> None:
    """One line for people; what programs read goes to standard output."""
    sys.stderr.write(f"{text}\n")


def timed() -> Callable[[str], None]:
    """Says each step with the seconds since the start."""
    began = time.monotonic()
    return lambda step: say(f"{time.monotonic() - began:7.1f} s  {step}")


def up(node: Node, arguments: argparse.Namespace) -> None:
    """Start our own node, after bringing what it needs."""
    tell = timed()
    node.check_rights()
    install(node.places, tell)
    node.up(tell)
    say(f'\n  eval "$(python -m e2e.kubernetes env)"    # then kubectl and helm use {API}')


def down(node: Node, arguments: argparse.Namespace) -> None:
    """Stop it."""
    node.check_rights()
    node.down("images" if arguments.purge_images else "state" if arguments.purge else "nothing")


def images(node: Node, arguments: argparse.Namespace) -> None:
    """Build images into the current cluster."""
    chosen = current(say)
    chosen.build_images(tuple(arguments.components) or COMPONENTS, version=arguments.version)


def load(node: Node, arguments: argparse.Namespace) -> None:
    """Give the current cluster an image archive."""
    current(say).load_image(arguments.archive)


def env(node: Node, arguments: argparse.Namespace) -> None:
    """What reaches the current cluster, for the shell's eval; starts our own node if there is no other."""
    chosen = current(say)
    say(f"# {CALLED[chosen.kind]}")
    for name, value in chosen.environment.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def status(node: Node, arguments: argparse.Namespace) -> None:
    """What of our own node runs."""
    node.check_rights()
    for name, pid in node.status().items():
        sys.stdout.write(f"{name:<20}{pid if pid is not None else 'does not run'}\n")


def restart_kubelet(node: Node, arguments: argparse.Namespace) -> None:
    """Kill our own node's kubelet and start it again; pods run on."""
    node.check_rights()
    node.restart_kubelet()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.kubernetes", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[Node, argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__.replace("_", "-"), help=run.__doc__, description=run.__doc__)
        added.set_defaults(run=run)
        return added

    command(up)
    downwards = command(down)
    downwards.add_argument("--purge", action="store_true", help="forget the cluster's state and its volumes too")
    downwards.add_argument("--purge-images", action="store_true", help="and the images")
    building = command(images)
    building.add_argument("components", nargs="*", metavar="COMPONENT", help=f"of {', '.join(COMPONENTS)}")
    building.add_argument("--version", default=VERSION, help=f"their tag ({VERSION})")
    command(load).add_argument("archive", type=Path, help="as `docker save` writes it")
    command(env)
    command(status)
    command(restart_kubelet)
    return parser.parse_args(arguments)


def main() -> int:
    """Run the command line."""
    arguments = parse()
    try:
        arguments.run(Node(places()), arguments)
    except (NodeTrouble, NoBuilder, BuildFailed) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
