"""Where our brokers' answers differ from Apache's, and why."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.admin_cli.step import Outcome

OFFLOAD = "there is no offloading yet, and so no settings of it"
REPLICATION = "there is no replication to other clusters yet: Apache's broker forgets the mark where a cursor is reset"

DIFFERENT_YET: dict[str, dict[str, str]] = {
    "pulsar-admin": {
        "topics stats-internal persistent://acme/orders/plain": REPLICATION,
        "topics stats-internal persistent://acme/orders/plain -m": REPLICATION,
        "topics info-internal persistent://acme/orders/plain": REPLICATION,
        "persistent info-internal persistent://acme/orders/plain": REPLICATION,
        "topicPolicies get-offload-policies persistent://acme/orders/plain -ap": OFFLOAD,
    },
    "pulsarctl": {},
}
"""By tool: commands that print otherwise until something else is there."""

OWN_SETTINGS = "each has the settings that it has"
MACHINE = "tells of a Java machine, its collectors and its buffers"
FIRST_VERSION = "namespaces that have a cluster in their name, of the API's first version, are not kept"
NOTHING_THERE = "Apache's broker does this to a namespace that is not there"

DIFFERENT: dict[str, dict[str, str]] = {
    "pulsar-admin": {
        "brokers list-dynamic-config": OWN_SETTINGS,
        "brokers get-runtime-config": OWN_SETTINGS,
        "broker-stats monitoring-metrics": MACHINE,
        "broker-stats mbeans": MACHINE,
        "broker-stats allocator-stats default": MACHINE,
        "broker-stats allocator-stats ml-cache": MACHINE,
        "brokers namespaces {cluster} -u {broker}": FIRST_VERSION,
        "brokers namespaces missing -u {broker}": FIRST_VERSION,
        "namespaces set-anti-affinity-group acme/missing -g apart": NOTHING_THERE,
        "namespaces delete-anti-affinity-group acme/missing": NOTHING_THERE,
        "namespaces update-migration-state acme/missing --migrated": NOTHING_THERE,
        "namespaces clear-backlog acme/missing -force": NOTHING_THERE,
        "namespaces unsubscribe acme/missing -s first": NOTHING_THERE,
        "topicPolicies delete persistent://acme/nowhere/topic": NOTHING_THERE,
        "namespaces remove-offload-policies acme/missing": "Apache's broker says 404, too, when it is asked again",
        "topics list acme/orders -ist": "the topic for policies is made when the first policy is set, not before",
        "schemas upload persistent://acme/orders/plain -f {files}/other.json": "in the words of a Java library",
        "schemas upload persistent://acme/orders/plain -f {files}/broken.json": "ours says what is wrong with it",
        "schemas metadata persistent://acme/orders/missing": "Apache's broker notes that what never was is deleted",
        "topicPolicies get-replication-clusters persistent://acme/orders/plain -g": "Apache's broker sets it, and "
        "then reads the one that is not global",
    },
    "pulsarctl": {
        "brokers namespaces {cluster} --url {broker}": FIRST_VERSION,
        "brokers list-dynamic-config": OWN_SETTINGS,
        "brokers get-runtime-config": OWN_SETTINGS,
        "broker-stats allocator-stats default": MACHINE,
        "broker-stats mbeans": MACHINE,
        "broker-stats monitoring-metrics": MACHINE,
    },
}
"""By tool: commands that will go on printing otherwise. A command that does so no more belongs out of these lists."""


def reasons(tool: str) -> dict[str, str]:
    """Every command of which a difference is known."""
    return {**DIFFERENT[tool], **DIFFERENT_YET[tool]}


def judge(
    server: str, tool: str, outcomes: Sequence[Outcome], found: Sequence[tuple[int, str]]
) -> tuple[list[str], list[str]]:
    """Sentences on differences that no reason is given for, and commands that a reason is given for without need."""
    known = reasons(tool) if server == "magnetar" else {}
    commands = {outcomes[number].command for number, _ in found}
    sentences = [
        f"{number} `{outcomes[number].command}`: {problem}"
        for number, problem in found
        if outcomes[number].command not in known
    ]
    return sentences, sorted(known.keys() - commands)
