"""Writes what charts have from the operator's types: values, schemas, rules, tables; `--check` only compares.

CRDs are written by `tools/generate_crds.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from magnetar.operator.rbac import lease_rules, rules
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.common import Component
from magnetar.operator.resources.crd import structural_schema

from tools.charts.cluster_values import EXAMPLE, POOL_EXAMPLE, cluster_schema
from tools.charts.operator_values import OperatorValues
from tools.charts.rendering import Row, between, rows, strict_schema, table, values_file

ROOT: Final = Path(__file__).resolve().parent.parent.parent
OPERATOR: Final = Path("charts/magnetar-operator")
CLUSTER: Final = Path("charts/magnetar-cluster")

SHARED: Final = tuple(structural_schema(Component)["properties"])
"""What every component has; told once."""
_COMPONENTS: Final = ("metadata.zookeeper", "bookkeeper", "broker", "proxy")
_STAND_IN: Final = "COMPONENT"
_RESOURCES: Final = ("cluster", "pools")
"""Values that become custom resources."""


def generated(root: Path) -> dict[Path, str]:
    """Every file's content by its path below the root."""
    operator = structural_schema(OperatorValues)
    cluster = cluster_schema()
    found = {
        OPERATOR / "values.yaml": values_file(
            operator, "Values of the chart magnetar-operator, all with their defaults. docs/charts.md tells more.", {}
        ),
        OPERATOR / "values.schema.json": strict_schema(operator, "Values of the chart magnetar-operator"),
        OPERATOR / "files/rbac/everywhere.yaml": _yaml(rules(cluster_wide=True)),
        OPERATOR / "files/rbac/namespace.yaml": _yaml(rules(cluster_wide=False)),
        OPERATOR / "files/rbac/lease.yaml": _yaml(lease_rules()),
        CLUSTER / "values.yaml": values_file(
            cluster,
            "Values of the chart magnetar-cluster, with their defaults. Everything below `cluster` and `pools` is "
            "listed in the chart's README, and told by `kubectl explain pulsarcluster.spec` and `kubectl explain "
            "bookie.spec`.",
            {"cluster": EXAMPLE, "pools": POOL_EXAMPLE},
        ),
        CLUSTER / "values.schema.json": strict_schema(
            cluster, "Values of the chart magnetar-cluster", resources=_RESOURCES
        ),
    }
    tables = {
        OPERATOR / "README.md": {"values": table(list(rows(operator)))},
        CLUSTER / "README.md": {
            "values": table(list(_own_rows(cluster))),
            "cluster": table(list(_spec_rows())),
            "shared": table(list(rows(structural_schema(Component), f"cluster.{_STAND_IN}."))),
            "pools": table(list(_pool_rows(cluster))),
        },
    }
    for path, contents in tables.items():
        text = (root / path).read_text(encoding="utf-8")
        for name, content in contents.items():
            text = between(text, name, content)
        found[path] = text
    return found


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=120)


def _own_rows(cluster: dict[str, Any]) -> Iterator[Row]:
    for row in rows(cluster):
        if row.path == "pools" or row.path.partition(".")[0] not in _RESOURCES:
            yield row
    whole = cluster["properties"]["cluster"]
    yield Row("cluster", "object", "{}", whole["description"])


def _spec_rows() -> Iterator[Row]:
    """Without what every component has."""
    for row in rows(structural_schema(PulsarClusterSpec), "cluster."):
        path = row.path.removeprefix("cluster.")
        component = next((name for name in _COMPONENTS if path.startswith(f"{name}.")), "")
        if component and path.removeprefix(f"{component}.").partition(".")[0] in SHARED:
            continue
        yield row


def _pool_rows(cluster: dict[str, Any]) -> Iterator[Row]:
    pool = cluster["properties"]["pools"]["additionalProperties"]
    for row in rows(pool, "pools.NAME."):
        if row.path.removeprefix("pools.NAME.").partition(".")[0] not in SHARED:
            yield row


def out_of_date(root: Path = ROOT) -> list[Path]:
    """Files that are not what the types say."""
    return [
        path
        for path, content in generated(root).items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != content
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say what is out of date, write nothing")
    if parser.parse_args().check:
        stale = out_of_date()
        for path in stale:
            print(f"{path} is out of date: run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    for path, content in generated(ROOT).items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
