"""Fewer brokers: those that go give their bundles away first, and the Deployment is told which ones they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.operator.children.naming import DRAIN_ANNOTATION
from magnetar.operator.plan.actions import Action, Annotate, CancelBrokerDrain, EmitEvent, StartBrokerDrain
from magnetar.operator.plan.facts import BrokerFacts, PodFacts, WorkloadFacts

COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""ReplicaSets that shrink let pods with a lower one go first, after those that are not ready."""
COST: Final = "-1000"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleIn:
    """What one pass does about the number of brokers."""

    replicas: int
    """What the Deployment may ask for by now."""
    actions: Sequence[Action] = ()
    message: str = ""
    """What is under way, or what it waits for."""


def broker_numbers(
    pods: Sequence[PodFacts], brokers: Mapping[str, BrokerFacts], found: WorkloadFacts | None, wanted: int
) -> ScaleIn:
    """As many as wanted at once if that is more, or if it is none: nobody could take the bundles. Fewer by as many as
    have given everything away, or cannot be asked and do not serve anybody, once nobody is giving bundles away: a
    ReplicaSet that shrinks takes pods that are not ready first, and a broker that is being drained is not."""
    if found is None or not found.desired:
        return ScaleIn(replicas=wanted)
    staying = [pod for pod in pods if not pod.deleting]
    if wanted >= found.desired:
        # While there are more pods than asked for, the drained ones are about to go.
        going = wanted == found.desired and len(staying) > found.desired
        return ScaleIn(replicas=wanted, actions=[] if going else _keep(staying, brokers))
    if not wanted:
        return ScaleIn(replicas=0)
    if _rolls(staying, found) and not found.stalled_message:
        return ScaleIn(replicas=found.desired, message="fewer brokers, once they are all up to date")
    return _drain(staying, brokers, found, wanted)


def _drain(pods: Sequence[PodFacts], brokers: Mapping[str, BrokerFacts], found: WorkloadFacts, wanted: int) -> ScaleIn:
    # Pods that the Deployment itself says it does not have, either.
    missing = max(0, min(found.desired - len(pods), found.desired - found.replicas))
    excess = max(0, min(found.desired - missing, len(pods)) - wanted)
    victims = sorted(pods, key=lambda pod: _rank(pod, brokers.get(pod.name)))[:excess]
    names = {pod.name for pod in victims}
    gone = sum(_gone(pod, brokers.get(pod.name)) for pod in victims)
    takers = [pod for pod in pods if pod.name not in names and pod.ready and _takes(brokers.get(pod.name))]
    actions = _keep([pod for pod in pods if pod.name not in names], brokers)
    waits = []
    for pod in victims:
        if pod.annotations.get(COST_ANNOTATION) != COST:
            actions.append(Annotate("Pod", pod.name, pod.uid, ((COST_ANNOTATION, COST),)))
        facts = brokers.get(pod.name)
        if facts is None:
            if not _gone(pod, facts):
                waits.append(f"{pod.name} does not answer on its control port")
        elif facts.drain == "None":
            if takers:
                actions.append(StartBrokerDrain(pod.name))
                words = f"{pod.name} gives {facts.bundles} bundles to the others, for {wanted} brokers are wanted"
                actions.append(EmitEvent("Normal", "DrainStarted", words))
            waits.append(f"{pod.name} is to be drained" if takers else "no other broker is ready to take bundles")
        elif facts.drain == "Running":
            held_up = f", held up by {', '.join(facts.blockers)}" if facts.blockers else ""
            waits.append(f"{pod.name} has {facts.bundles_left} bundles left to give away{held_up}")
    if any(_gives_away(brokers.get(pod.name), takers) for pod in victims):
        gone = 0
    replicas = max(wanted, found.desired - missing - gone)
    return ScaleIn(replicas=replicas, actions=actions, message="; ".join(waits[:3]))


def _rank(pod: PodFacts, facts: BrokerFacts | None) -> tuple[int, int, float, str]:
    """Who goes first: who serves nobody (a ReplicaSet takes those first, too), who is drained already or was chosen
    before, who has the fewest bundles, the youngest."""
    bundles = facts.bundles if facts is not None else 0
    if _gone(pod, facts):
        step = 0 if facts is None else 1
    elif facts is not None and facts.drain == "Running":
        step = 2
    elif pod.annotations.get(COST_ANNOTATION) == COST:
        step = 3
    else:
        step = 5 if pod.ready else 4
    return step, bundles, -pod.created_seconds, pod.name


def _gone(pod: PodFacts, facts: BrokerFacts | None) -> bool:
    """Nothing is lost with it."""
    return not pod.ready if facts is None else facts.drain == "Done"


def _gives_away(facts: BrokerFacts | None, takers: Sequence[PodFacts]) -> bool:
    """It is being drained, or will be in a moment."""
    return facts is not None and (facts.drain == "Running" or (facts.drain == "None" and bool(takers)))


def _takes(facts: BrokerFacts | None) -> bool:
    return facts is not None and facts.registered and facts.drain == "None"


def _keep(pods: Sequence[PodFacts], brokers: Mapping[str, BrokerFacts]) -> list[Action]:
    """Take back what was said to brokers that were to go and are to stay."""
    actions: list[Action] = []
    for pod in pods:
        facts = brokers.get(pod.name)
        if pod.annotations.get(COST_ANNOTATION) == COST:
            actions.append(Annotate("Pod", pod.name, pod.uid, ((COST_ANNOTATION, None),)))
        # What a person has drained is theirs to take back.
        if facts is not None and facts.drain != "None" and DRAIN_ANNOTATION not in pod.annotations:
            actions.append(CancelBrokerDrain(pod.name))
            actions.append(EmitEvent("Normal", "DrainCancelled", f"{pod.name} stays, and takes bundles again"))
    return actions


def _rolls(pods: Sequence[PodFacts], found: WorkloadFacts) -> bool:
    """Its pods are being replaced: which of them goes is not ours to say meanwhile."""
    outdated = any(pod.template_hash != found.template_hash for pod in pods)
    return not found.settled or outdated or found.updated < found.replicas or found.replicas > found.desired
