"""`pulsar-admin topicPolicies`: all are read, set, read, removed and read, in strides that brokers can follow."""

from __future__ import annotations

from e2e.admin_cli.step import TOPIC, Step, steps

MISSING = "persistent://acme/orders/missing"
LOST = "persistent://acme/nowhere/topic"
# Apache's brokers answer a read from what they have read back of their own writing.
SETTLE_SECONDS = 4.0

POLICIES: dict[str, tuple[str, ...]] = {
    "message-ttl": ("-t 1h", "-t -1"),
    "max-unacked-messages-per-consumer": ("-m 3", "-m -1"),
    "max-consumers-per-subscription": ("-c 4", "-c -1"),
    "subscription-types-enabled": ("-t Shared,Failover", "-t Unknown"),
    "retention": ("--time 10m --size 100M", "--time 0 --size 10M"),
    "backlog-quota": ("-l 10M -p producer_exception", "-l 10M -p odd", "-lt 1h -p producer_exception -t message_age"),
    "max-producers": ("-p 5", "-p -1"),
    "max-message-size": ("-m 1000", "-m 99999999", "-m -1"),
    "deduplication": ("--enable", ""),
    "deduplication-snapshot-interval": ("-i 60", "-i -1"),
    "persistence": ("-e 1 -w 1 -a 1 -r 2.5", "-e 1 -w 2 -a 2 -r 0"),
    "subscription-dispatch-rate": ("-md 10 -bd 20 -dt 3 -rp", "-md 5 -s named"),
    "replicator-dispatch-rate": ("-md 11 -bd 21 -dt 4",),
    "publish-rate": ("-m 12 -b 22",),
    "compaction-threshold": ("-t 10M", "-t -1"),
    "subscribe-rate": ("-sr 6 -st 7",),
    "max-consumers": ("-c 8", "-c -1"),
    "delayed-delivery": ("-e -t 5s -md 1h", "-t 1s"),
    "dispatch-rate": ("-md 13 -bd 23 -dt 5",),
    "offload-policies": ("-d aws-s3 -r us-east-1 -b bucket -e http://s3 -t 1M", "-d odd -r r -b b"),
    "max-unacked-messages-per-subscription": ("-m 9", "-m -1"),
    "inactive-topic-policies": ("-e -t 2h -m delete_when_subscriptions_caught_up", "-e -d -t 2h -m odd"),
    "max-subscriptions-per-topic": ("-s 100", "-s -1"),
    "schema-compatibility-strategy": ("-s FULL", "-s ODD"),
    "entry-filters-per-topic": ("-efn org.example.Filter",),
    "auto-subscription-creation": ("--enable",),
    "dispatcher-pause-on-ack-state-persistent": ("",),
    "replication-clusters": ("-c {cluster}", "-c missing"),
}

# These have no -ap or -a.
UNAPPLIED = {
    "max-consumers-per-subscription", "subscription-types-enabled", "max-message-size", "deduplication",
    "deduplication-snapshot-interval", "persistence", "publish-rate", "max-subscriptions-per-topic",
}  # fmt: skip
# These have no -g.
LOCAL = {"schema-compatibility-strategy"}
APPLIED_SHORT = {"auto-subscription-creation", "dispatcher-pause-on-ack-state-persistent"}


def _reads() -> list[Step]:
    found = []
    for name in POLICIES:
        found.append(Step(f"topicPolicies get-{name} {TOPIC}"))
        if name not in UNAPPLIED:
            flag = "-a" if name in APPLIED_SHORT else "-ap"
            found.append(Step(f"topicPolicies get-{name} {TOPIC} {flag}"))
    named = f"topicPolicies get-subscription-dispatch-rate {TOPIC} -s named"
    return [*found, Step(named)]


def _settled(found: list[Step]) -> list[Step]:
    return [Step(found[0].command, pause_s=SETTLE_SECONDS), *found[1:]]


SETS = [
    Step(f"topicPolicies set-{name} {TOPIC} {value}".strip()) for name, values in POLICIES.items() for value in values
]
REMOVES = [Step(f"topicPolicies remove-{name} {TOPIC}") for name in POLICIES]
GLOBALS = [
    Step(f"topicPolicies set-{name} {TOPIC} -g {values[0]}".strip())
    for name, values in POLICIES.items()
    if name not in LOCAL
]
GLOBAL_READS = [Step(f"topicPolicies get-{name} {TOPIC} -g") for name in POLICIES if name not in LOCAL]
GLOBAL_REMOVES = [Step(f"topicPolicies remove-{name} {TOPIC} -g") for name in POLICIES if name not in LOCAL]
OF_NOTHING = [
    Step(f"topicPolicies {verb}-{name} {topic} {values[0] if verb == 'set' else ''}".strip())
    for name, values in POLICIES.items()
    for verb, topic in (("get", MISSING), ("set", MISSING), ("remove", MISSING), ("get", LOST), ("set", LOST))
]

WALK = [
    *_reads(),
    *SETS,
    *_settled(_reads()),
    *REMOVES,
    Step(f"topicPolicies remove-subscription-dispatch-rate {TOPIC} -s named"),
    Step(f"topicPolicies remove-backlog-quota {TOPIC} -t message_age"),
    *_settled(_reads()),
    *GLOBALS,
    *_settled(GLOBAL_READS),
    *GLOBAL_REMOVES,
    *_settled(GLOBAL_READS),
    *steps(f"topicPolicies set-max-producers {TOPIC} -p 5", f"topicPolicies delete {TOPIC}"),
    Step(f"topicPolicies get-max-producers {TOPIC}", pause_s=SETTLE_SECONDS),
    *steps(f"topicPolicies delete {MISSING}", f"topicPolicies delete {LOST}"),
    *OF_NOTHING,
]
