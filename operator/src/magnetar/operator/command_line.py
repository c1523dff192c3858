"""The command `magnetar-operator`, its options and environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from magnetar.core.crashes import CRASHES, DIRECTORY_VARIABLE
from magnetar.core.errors import MagnetarError
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.standard_streams import fill_standard_streams
from magnetar.operator.rbac import lease_rules, rules
from magnetar.operator.resources.crd import DEFINITIONS, custom_resource_definition
from magnetar.operator.settings import LogFormat, LogLevel, OperatorSettings, default_identity, split_names

NAME = "magnetar-operator"

application = typer.Typer(
    add_completion=False,
    name=NAME,
    help="Looks after Pulsar clusters on Kubernetes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _own_version() -> str:
    import importlib.metadata  # 10 ms that only few need.

    return importlib.metadata.version("magnetar-operator")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{NAME} {_own_version()}")
        raise typer.Exit


@application.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


@application.command()
def run(
    operator_namespace: Annotated[
        str, typer.Option(envvar="OPERATOR_NAMESPACE", help="Where the operator's own Lease is.")
    ] = "magnetar-system",
    watch_namespaces: Annotated[
        str, typer.Option(envvar="WATCH_NAMESPACES", help="Where it works, separated by commas; none: everywhere.")
    ] = "",
    image_repository: Annotated[
        str, typer.Option(envvar="IMAGE_REPOSITORY", help="What images' names begin with.")
    ] = "magnetar",
    version: Annotated[str, typer.Option(envvar="VERSION", help="Of the images; by default the operator's own.")] = "",
    domain: Annotated[str, typer.Option(envvar="DOMAIN", help="The Kubernetes cluster's DNS domain.")] = (
        "cluster.local"
    ),
    host: Annotated[str, typer.Option(envvar="HTTP_HOST", help="Of metrics and probes.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(envvar="HTTP_PORT", min=0, max=65535, help="Of metrics and probes.")] = 8080,
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Who holds the Lease; by default the host and the process.")
    ] = "",
    log_format: Annotated[
        LogFormat, typer.Option(envvar="LOG_FORMAT", help="auto: text on a terminal, else JSON.")
    ] = "auto",
    log_level: Annotated[LogLevel, typer.Option(envvar="LOG_LEVEL", help="How much is logged.")] = "info",
    crash_directory: Annotated[
        str, typer.Option(envvar=DIRECTORY_VARIABLE, help="Where crashes are kept; by default they are only logged.")
    ] = "",
) -> None:
    """Look after clusters until told to stop. Of several operators, one works and the others wait."""
    import uvloop  # These three make two thirds of the process: not for a version or a manifest.
    from magnetar.operator.app import serve
    from magnetar.operator.logs import set_up

    set_up(log_format, log_level)
    CRASHES.tell_on_standard_error()
    if crash_directory:
        CRASHES.record_in(Path(crash_directory))
    settings = OperatorSettings(
        operator_namespace=operator_namespace,
        watch_namespaces=split_names(watch_namespaces),
        image_repository=image_repository,
        version=version or _own_version(),
        domain=domain,
        host=host,
        port=port,
        identity=default_identity(identity),
    )
    try:
        code = uvloop.run(serve(settings))
    except MagnetarError as error:
        typer.echo(f"{NAME}: {error}", err=True)
        code = EXIT_FAILED
    raise typer.Exit(code)


@application.command()
def crds() -> None:
    """Print the custom resource definitions."""
    _print_manifests([custom_resource_definition(definition) for definition in DEFINITIONS])


@application.command()
def rbac(
    namespaced: Annotated[
        bool, typer.Option("--namespaced", help="The Role of one namespace, instead of the ClusterRole.")
    ] = False,
) -> None:
    """Print what the operator may do: where it works, and with its Lease in its own namespace."""
    role = _role("Role" if namespaced else "ClusterRole", NAME, rules(cluster_wide=not namespaced))
    _print_manifests([role, _role("Role", f"{NAME}-lease", lease_rules())])


def _role(kind: str, name: str, its_rules: Sequence[Mapping[str, object]]) -> dict[str, object]:
    metadata = {"name": name}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": list(its_rules)}


def _print_manifests(manifests: Sequence[Mapping[str, object]]) -> None:
    typer.echo(yaml.safe_dump_all(manifests, sort_keys=False, width=120, allow_unicode=True), nl=False)


def main() -> None:
    """Run the command `magnetar-operator`."""
    fill_standard_streams()
    application(prog_name=NAME)
