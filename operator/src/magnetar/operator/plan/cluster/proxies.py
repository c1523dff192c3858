"""The part of a cluster's plan about proxies."""

from __future__ import annotations

from magnetar.operator.children.naming import PROXY
from magnetar.operator.children.proxies import proxy_children
from magnetar.operator.plan.actions import Action, Delete
from magnetar.operator.plan.cluster.deployments import Deployment, RolloutGate
from magnetar.operator.plan.cluster.parts import (
    PROXIES_READY,
    ComponentPlan,
    alive,
    component_status,
    stall_of,
    under_way,
)
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import ClusterSeen


def plan_proxies(seen: ClusterSeen, brokers: ComponentPlan) -> ComponentPlan:
    """They start when a broker is ready, and are updated when all brokers are."""
    cluster = seen.cluster
    found = seen.children.workloads.get(("Deployment", cluster.proxy))
    pods = alive(seen.children.of(PROXY))
    wanted = cluster.spec.proxy.replicas
    if not wanted:
        actions: list[Action] = []
        if found is not None and not found.deleting:
            actions.append(Delete(found.kind, found.name, found.uid, reason="proxy.replicas is 0"))
        words = "clients connect to the brokers themselves"
        current = NewCondition(PROXIES_READY, True, "NoneWanted", words)
        return ComponentPlan(condition=current, status=component_status(pods, "", 0, ""), actions=actions, serving=True)
    replicas = 0 if cluster.spec.hibernated else wanted
    deployment = Deployment(
        type=PROXIES_READY,
        manifests=proxy_children(cluster, replicas),
        found=found,
        pods=pods,
        gate=RolloutGate(
            start="" if brokers.serving else "proxies start once a broker is ready",
            update="" if brokers.complete else f"proxies are updated after the brokers: {brokers.condition.message}",
        ),
        hibernated=cluster.spec.hibernated,
        now_seconds=seen.now_seconds,
    )
    current = deployment.condition(wanted, replicas)
    return ComponentPlan(
        condition=current,
        status=component_status(pods, deployment.wanted_hash, replicas, "" if current.holds else current.message),
        actions=deployment.actions(replicas),
        stalled=stall_of(current),
        serving=any(pod.ready for pod in pods),
        busy=under_way(current),
    )
