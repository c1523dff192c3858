"""Rights: what the code asks for, and nothing else. That they are enough is tried by the simulation, whose API server
refuses all others, and on a real one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar.operator.handlers import WATCHED
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, KINDS, PULSAR_CLUSTER
from magnetar.operator.listing import CLUSTER_KINDS, POOL_KINDS
from magnetar.operator.rbac import lease_rules, rules
from magnetar.operator.settings import LEASE_NAME

OWN = {PULSAR_CLUSTER, BOOKIE_POOL}
LISTED = {*OWN, *CLUSTER_KINDS, *POOL_KINDS, "Event", "PodMonitor"}


def may(its_rules: Iterable[Mapping[str, Any]], verb: str) -> set[str]:
    return {resource for rule in its_rules if verb in rule["verbs"] for resource in rule["resources"]}


def plurals(kinds: Iterable[str]) -> set[str]:
    return {KINDS[kind].plural for kind in kinds}


def test_rights_to_read_are_those_that_are_used() -> None:
    everywhere, somewhere = rules(cluster_wide=True), rules(cluster_wide=False)
    assert may(somewhere, "list") == plurals(LISTED)
    assert may(somewhere, "watch") == plurals({*OWN, *WATCHED})
    # Children are listed; of Secrets there is one whose name is known.
    assert may(somewhere, "get") == plurals({*OWN, "Secret"})
    assert may(everywhere, "get") - may(somewhere, "get") == {"storageclasses"}
    assert may(everywhere, "watch") - may(somewhere, "watch") == {"customresourcedefinitions"}


def test_what_is_applied_may_be_made_too() -> None:
    """Server-side apply of what is not there needs both."""
    found = rules(cluster_wide=True)
    patched_only = {"pulsarclusters", "pulsarclusters/status", "bookies/status", "pods", "persistentvolumeclaims"}
    assert may(found, "patch") - may(found, "create") == patched_only
    assert may(found, "create") - may(found, "patch") == {"secrets"}
    assert may(found, "update") == {"pulsarclusters/finalizers", "bookies/finalizers"}


def test_no_lease_but_its_own_may_be_changed() -> None:
    for cluster_wide in (True, False):
        found = rules(cluster_wide=cluster_wide)
        assert not any("*" in str(rule) or "leases" in rule["resources"] for rule in found)
    create, rest = lease_rules()
    assert create["verbs"] == ["create"]
    assert (rest["verbs"], rest["resourceNames"]) == (["get", "patch"], [LEASE_NAME])
