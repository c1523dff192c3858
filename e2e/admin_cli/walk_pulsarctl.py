"""`pulsarctl`, all of it that talks to brokers."""

from __future__ import annotations

from e2e.admin_cli.step import Step, steps

SPACE = "gopher/burrow"
POLICY_SPACE = "gopher/policies"
TOPIC = "persistent://gopher/burrow/plain"
PARTED = "persistent://gopher/burrow/parted"
MISSING = "persistent://gopher/burrow/missing"
SUDDEN = "persistent://gopher/burrow/sudden"
NOWHERE = "gopher/nowhere"
SETTLE_SECONDS = 4.0
PARAMETERS = "min_limit=1,usage_threshold=80"

ABOVE = steps(
    "status check",
    "clusters list",
    "clusters list -o json",
    "clusters get {cluster}",
    "clusters get missing",
    "clusters add green --url http://green:8080 --broker-url pulsar://green:6650",
    "clusters add green --url http://green:8080",
    "clusters add blue --url http://blue:8080",
    "clusters get green -o yaml",
    "clusters update green --url http://green:8081 -p blue",
    "clusters update missing --url http://green:8081",
    "clusters get green",
    "clusters update-peer-clusters -p blue green",
    "clusters update-peer-clusters -p missing green",
    "clusters get-peer-clusters green",
    "clusters get-peer-clusters missing",
    "clusters create-failure-domain -b a:8080 -b b:8080 {cluster} first",
    "clusters create-failure-domain -b b:8080 {cluster} second",
    "clusters get-failure-domain {cluster} first",
    "clusters get-failure-domain {cluster} missing",
    "clusters update-failure-domain --broker-list a:8080 {cluster} first",
    "clusters list-failure-domains {cluster}",
    "clusters list-failure-domains missing",
    "clusters delete-failure-domain {cluster} first",
    "clusters delete-failure-domain {cluster} missing",
    "clusters delete green",
    "clusters delete blue",
    "clusters delete missing",
    "brokers list {cluster}",
    "brokers list missing",
    "brokers healthcheck",
    "brokers namespaces {cluster} --url {broker}",
    "brokers list-dynamic-config",
    "brokers get-all-dynamic-config",
    "brokers update-dynamic-config --config maxConcurrentLookupRequest --value 4000",
    "brokers update-dynamic-config --config unknownSetting --value 1",
    "brokers get-all-dynamic-config",
    "brokers delete-dynamic-config --config maxConcurrentLookupRequest",
    "brokers get-internal-config",
    "brokers get-runtime-config",
    "broker-stats allocator-stats default",
    "broker-stats load-report",
    "broker-stats mbeans",
    "broker-stats monitoring-metrics",
    "tenants list",
    "tenants create gopher -c {cluster} -r admin",
    "tenants create gopher -c {cluster}",
    "tenants create astray -c missing",
    "tenants get gopher",
    "tenants get nobody",
    "tenants update gopher -c {cluster} -r other",
    "tenants update nobody -c {cluster}",
    "tenants get gopher -o json",
    "ns-isolation-policy set {cluster} first --auto-failover-policy-type min_available"
    f" --auto-failover-policy-params {PARAMETERS} --namespaces nowhere/.* --primary 10.1.* --secondary 10.2.*",
    "ns-isolation-policy get {cluster} first",
    "ns-isolation-policy get {cluster} missing",
    "ns-isolation-policy list {cluster}",
    "ns-isolation-policy brokers {cluster}",
    "ns-isolation-policy broker {cluster} {broker}",
    "ns-isolation-policy delete {cluster} first",
    "ns-isolation-policy delete {cluster} missing",
    f"namespaces create {SPACE} -b 4 -c {{cluster}}",
    f"namespaces create {SPACE} -b 4",
    f"namespaces create {POLICY_SPACE} -b 4",
    "namespaces create nobody/space -b 4",
    "namespaces list gopher",
    "namespaces list nobody",
    f"namespaces policies {SPACE}",
    f"namespaces policies {NOWHERE}",
    f"namespaces topics {SPACE}",
    "resource-quotas get",
    f"resource-quotas get {SPACE} 0x00000000_0x40000000",
    f"resource-quotas set -n {SPACE} -b 0x00000000_0x40000000 --msgRateIn 10 --msgRateOut 20 --bandwidthIn 30"
    " --bandwidthOut 40 --memory 50 --dynamic",
    f"resource-quotas get {SPACE} 0x00000000_0x40000000",
    f"resource-quotas reset {SPACE} 0x00000000_0x40000000",
    f"resource-quotas get {SPACE} 0x00000000_0x40000000",
)

# What sets each policy.
NAMESPACE_POLICIES = {
    "compaction-threshold": "--size 10M",
    "dispatch-rate": "-m 10 -b 20 -p 3",
    "is-allow-auto-update-schema": "--disable",
    "max-consumers-per-subscription": "--size 3",
    "max-consumers-per-topic": "--size 4",
    "max-producers-per-topic": "--size 5",
    "message-ttl": "-t 3600",
    "offload-deletion-lag": "-l 1h",
    "offload-threshold": "--size 10M",
    "persistence": "-e 1 -w 1 -a 1 -r 2.0",
    "publish-rate": "-m 11 -b 21",
    "replicator-dispatch-rate": "-m 12 -b 22 -p 4",
    "retention": "--time 10m --size 100M",
    "schema-autoupdate-strategy": "-c Backward",
    "schema-validation-enforced": "",
    "subscribe-rate": "-m 5 -p 10",
    "subscription-dispatch-rate": "-m 13 -b 23 -p 5",
}


def _namespace_policy(name: str, value: str) -> list[Step]:
    get, put = f"namespaces get-{name}", f"namespaces set-{name}"
    return steps(
        f"{get} {POLICY_SPACE}", f"{put} {POLICY_SPACE} {value}".strip(), f"{get} {POLICY_SPACE}",
        f"{get} {NOWHERE}", f"{put} {NOWHERE} {value}".strip(),
    )  # fmt: skip


NAMESPACES = [
    *[step for name, value in NAMESPACE_POLICIES.items() for step in _namespace_policy(name, value)],
    *steps(
        f"namespaces get-backlog-quotas {POLICY_SPACE}",
        f"namespaces set-backlog-quota {POLICY_SPACE} -l 10M -p producer_exception",
        f"namespaces set-backlog-quota {POLICY_SPACE} -l 10M -t 3600 -p producer_exception --type message_age",
        f"namespaces get-backlog-quotas {POLICY_SPACE}",
        f"namespaces remove-backlog-quota {POLICY_SPACE}",
        f"namespaces get-backlog-quotas {NOWHERE}",
        f"namespaces set-anti-affinity-group {POLICY_SPACE} -g apart",
        f"namespaces get-anti-affinity-group {POLICY_SPACE}",
        f"namespaces get-anti-affinity-namespaces {POLICY_SPACE} -g apart -c {{cluster}} -t gopher",
        f"namespaces delete-anti-affinity-group {POLICY_SPACE}",
        f"namespaces get-anti-affinity-group {POLICY_SPACE}",
        f"namespaces get-clusters {POLICY_SPACE}",
        f"namespaces set-clusters {POLICY_SPACE} -c {{cluster}}",
        f"namespaces set-clusters {POLICY_SPACE} -c missing",
        f"namespaces grant-permission --role app --actions produce --actions consume {POLICY_SPACE}",
        f"namespaces permissions {POLICY_SPACE}",
        f"namespaces revoke-permission --role app {POLICY_SPACE}",
        f"namespaces permissions {NOWHERE}",
        f"namespaces grant-subscription-permission --role one --role two {POLICY_SPACE} sub",
        f"namespaces revoke-subscription-permission --role one {POLICY_SPACE} sub",
        f"namespaces messages-encryption {POLICY_SPACE}",
        f"namespaces messages-encryption --disable {POLICY_SPACE}",
        f"namespaces set-deduplication {POLICY_SPACE} --enable",
        f"namespaces set-deduplication {POLICY_SPACE}",
        f"namespaces set-subscription-auth-mode -m Prefix {POLICY_SPACE}",
        f"namespaces set-topic-auto-creation {POLICY_SPACE} --type partitioned --partitions 2",
        f"namespaces set-topic-auto-creation {POLICY_SPACE} --disable",
        f"namespaces remove-topic-auto-creation {POLICY_SPACE}",
        f"namespaces clear-offload-deletion-lag {POLICY_SPACE}",
        f"namespaces policies {POLICY_SPACE}",
    ),
]

TOPICS = steps(
    f"topics create {TOPIC} 0",
    f"topics create {TOPIC} 0",
    f"topics create {PARTED} 2",
    f"topics create {PARTED} 2",
    "topics create persistent://gopher/nowhere/topic 0",
    f"topics update {PARTED} 3",
    f"topics update {PARTED} 1",
    f"topics get {PARTED}",
    f"topics get {TOPIC}",
    f"topics list {SPACE}",
    f"topics list {NOWHERE}",
    f"namespaces topics {SPACE}",
    f"topics lookup {TOPIC}",
    f"topics bundle-range {TOPIC}",
    f"topics grant-permissions --role app --actions produce {TOPIC}",
    f"topics get-permissions {TOPIC}",
    f"topics revoke-permissions --role app {TOPIC}",
    f"subscriptions create {TOPIC} first -m earliest",
    f"subscriptions create {TOPIC} first",
    f"subscriptions create {SUDDEN} first",
    f"subscriptions list {TOPIC}",
    f"subscriptions list {MISSING}",
)

MESSAGES = [
    Step(f"topics stats {TOPIC}", produce=6),
    Step("broker-stats topics", pause_s=2.0),
    *steps(
        f"topics stats --partitioned-topic --per-partition {PARTED}",
        f"topics stats {MISSING}",
        f"topics internal-stats {TOPIC}",
        f"topics internal-stats {MISSING}",
        f"topics internal-info {TOPIC}",
        f"topics last-message-id {TOPIC}",
        f"topics last-message-id {MISSING}",
        f"subscriptions peek -n 2 {TOPIC} first",
        f"subscriptions get-message-by-id -l {{ledger}} -e 1 {TOPIC}",
        f"subscriptions get-message-by-id -l {{ledger}} -e 100 {TOPIC}",
        f"subscriptions skip -n 2 {TOPIC} first",
        f"subscriptions skip -n 2 {TOPIC} nobody",
        f"subscriptions seek -m {{ledger}}:1 {TOPIC} first",
        f"subscriptions seek -t 1h {TOPIC} first",
        f"subscriptions seek -t 1h {TOPIC} nobody",
        f"subscriptions expire -t 3600 {TOPIC} first",
        f"subscriptions expire -t 3600 --all {TOPIC} first",
        f"subscriptions skip --all {TOPIC} first",
        f"subscriptions peek -n 1 {TOPIC} peeker",
        f"topics unload {TOPIC}",
        f"topics unload {MISSING}",
        f"topics compact-status {TOPIC}",
        f"topics offload-status {TOPIC}",
        f"topics offload {TOPIC} 10M",
    ),
]

TOPIC_POLICIES = {
    "backlog-quota": "--limit-size 10M -p producer_exception",
    "compaction-threshold": "-t 10M",
    "deduplication": "-e",
    "delayed-delivery": "-t 10s -e",
    "dispatch-rate": "--msg-dispatch-rate 4 --byte-dispatch-rate 5 --dispatch-rate-period 6",
    "inactive-topic-policies": "-e -t 1h -m delete_when_no_subscriptions",
    "max-consumers": "-c 10",
    "max-producers": "-p 10",
    "max-unacked-messages-per-consumer": "-m 10",
    "max-unacked-messages-per-subscription": "-m 10",
    "message-ttl": "-t 10",
    "persistence": "-e 1 -w 1 -a 1 -r 1.0",
    "publish-rate": "--msg-publish-rate 4 --byte-publish-rate 5",
    "retention": "--time 10m --size 100M",
}


def _reads() -> list[Step]:
    names = [name + ("s" if name == "backlog-quota" else "") for name in TOPIC_POLICIES]
    found = [Step(f"topics get-{name} {TOPIC}") for name in names]
    return [Step(found[0].command, pause_s=SETTLE_SECONDS), *found[1:]]


POLICIES = [
    *_reads(),
    *[Step(f"topics set-{name} {TOPIC} {value}") for name, value in TOPIC_POLICIES.items()],
    *_reads(),
    *[Step(f"topics remove-{name} {TOPIC}") for name in TOPIC_POLICIES],
    *_reads(),
]

END = steps(
    f"schemas upload {TOPIC} -f {{files}}/record.json",
    f"schemas get {TOPIC}",
    f"schemas get {TOPIC} --version 0",
    f"schemas get {TOPIC} --version 7",
    f"schemas delete {TOPIC}",
    f"schemas get {TOPIC}",
    f"namespaces clear-backlog -f {SPACE}",
    f"namespaces clear-backlog -f --sub first {SPACE}",
    f"namespaces unsubscribe {SPACE} first",
    f"namespaces split-bundle {SPACE} -b 0x00000000_0x40000000",
    f"namespaces split-bundle {SPACE} -b 0x00000000_0x12345678",
    f"namespaces unload {SPACE} -b 0x40000000_0x80000000",
    f"namespaces unload {SPACE}",
    f"subscriptions create {TOPIC} second",
    f"subscriptions delete {TOPIC} second",
    f"subscriptions delete {TOPIC} nobody",
    f"topics terminate {TOPIC}",
    f"topics compact {TOPIC}",
    f"topics delete {PARTED}",
    f"topics delete --non-partitioned {TOPIC}",
    f"topics delete --non-partitioned {SUDDEN}",
    f"topics delete --non-partitioned {MISSING}",
    f"topics list {SPACE}",
    f"namespaces delete {SPACE}",
    f"namespaces delete {POLICY_SPACE}",
    f"namespaces delete {NOWHERE}",
    "tenants delete gopher",
    "tenants delete nobody",
    "tenants list",
)

WALK = [*ABOVE, *NAMESPACES, *TOPICS, *MESSAGES, *POLICIES, *END]
