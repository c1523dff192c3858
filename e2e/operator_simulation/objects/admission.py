"""What the API server adds to objects and what it refuses: defaults, immutable fields, rules of single kinds.

Only of the kinds that the operator makes, and only what a controller can trip over. (Kubernetes: pkg/apis/*/v1 defaults
and validation.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.operator.kubernetes.errors import Refused
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.crd import DEFINITIONS, structural_schema
from magnetar.operator.resources.quantities import format_bytes, size_bytes

ORIGIN_SECONDS: Final = 1_750_000_000
"""What the simulated clock shows at the beginning."""

STORAGE_CLASSES: Final = {"standard": True, "rigid": False}
"""Whether volumes of a class may grow; the first is the default."""

_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    definition.kind: {"type": "object", "properties": {"spec": structural_schema(definition.spec)}}
    for definition in DEFINITIONS
}

AFFINITIES: Final = frozenset({"nodeAffinity", "podAffinity", "podAntiAffinity"})
MISSPELT: Final = "nodeAffinityy"
"""What people write instead of one of them."""

_STATEFUL_SET_MUTABLE: Final = (
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
)


def undeclared_field(manifest: Manifest) -> str:
    """Where an object has a field that its kind does not have, as far as people can bring one in; empty: nowhere."""
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    wrong = sorted(set(pod.get("affinity", {})) - AFFINITIES)
    return f".spec.template.spec.affinity.{wrong[0]}" if wrong else ""


def answer_to_undeclared(verb: str, manifest: Manifest, field: str) -> tuple[int, dict[str, Any]]:
    """How an API server (1.34) says so: its code and its body. Of what is applied it takes the error for its own."""
    kind, metadata = manifest["kind"], manifest["metadata"]
    if verb == "create":
        version = f'{kind} in version "v1" cannot be handled as a {kind}'
        words = f'{version}: strict decoding error: unknown field "{field[1:]}"'
        return 400, {"kind": "Status", "status": "Failure", "message": words, "reason": "BadRequest", "code": 400}
    whose = f"{metadata['namespace']}/{metadata['name']}; {manifest['apiVersion']}, Kind={kind}"
    words = f"failed to create typed patch object ({whose}): {field}: field not declared in schema"
    return 500, {"kind": "Status", "status": "Failure", "message": words, "code": 500}


def with_defaults(manifest: Manifest, before: Manifest | None) -> Manifest:
    """The object with what the server adds to it."""
    kind = manifest["kind"]
    if kind in _SCHEMAS:
        found: Manifest = _filled(manifest, _SCHEMAS[kind])
        return found
    add = _DEFAULTS.get(kind)
    return add(manifest, before) if add is not None else manifest


def admit(before: Manifest | None, after: Manifest) -> None:
    """`Refused` for what may not be."""
    kind, name = after["kind"], after["metadata"]["name"]
    references = after["metadata"].get("ownerReferences", ())
    if sum(bool(reference.get("controller")) for reference in references) > 1:
        raise _invalid(kind, name, "metadata.ownerReferences: Only one reference can have Controller set to true")
    if len(name) > 63 and kind in ("Service", "Pod", "StatefulSet", "Job"):
        raise _invalid(kind, name, "metadata.name: must be no more than 63 characters")
    if before is None:
        return
    if "deletionTimestamp" in before["metadata"]:
        added = set(after["metadata"].get("finalizers", ())) - set(before["metadata"].get("finalizers", ()))
        if added:
            raise _invalid(kind, name, "metadata.finalizers: Forbidden: no new finalizers can be added")
    if kind == "ConfigMap" and before.get("immutable") and before.get("data") != after.get("data"):
        raise _invalid(kind, name, "data: Forbidden: field is immutable when `immutable` is set")
    check = _CHECKS.get(kind)
    if check is not None and (problem := check(before["spec"], after["spec"])) is not None:
        raise _invalid(kind, name, problem)


def _invalid(kind: str, name: str, message: str) -> Refused:
    return Refused(f"{kind} {name!r} is invalid: {message}")


# --- defaults


def _filled(value: Any, schema: Mapping[str, Any]) -> Any:
    """Structural defaulting of custom resources."""
    if isinstance(value, dict):
        found = {}
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        for name, part in value.items():
            below = properties.get(name, extra if isinstance(extra, dict) else None)
            found[name] = _filled(part, below) if below is not None else part
        for name, below in properties.items():
            if name not in found and "default" in below:
                found[name] = _filled(below["default"], below)
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_filled(item, schema["items"]) for item in value]
    return value


def _template(template: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        **template["spec"],
    }
    spec["containers"] = [_container(container) for container in spec["containers"]]
    return {**template, "spec": spec}


def _container(container: dict[str, Any]) -> dict[str, Any]:
    found = {"terminationMessagePath": "/dev/termination-log", **container}
    if "env" in found:
        found["env"] = [_variable(variable) for variable in found["env"]]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        if probe in found:
            found[probe] = {"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, **found[probe]}
    resources = found.get("resources", {})
    found["resources"] = {name: _quantities(values) for name, values in resources.items()}
    return found


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    if "fieldRef" in variable.get("valueFrom", {}):
        reference = {"apiVersion": "v1", **variable["valueFrom"]["fieldRef"]}
        return {**variable, "valueFrom": {"fieldRef": reference}}
    return variable


def _quantities(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: format_bytes(size_bytes(value)) if name in ("memory", "storage") else str(value)
        for name, value in values.items()
    }


def _stateful_set(manifest: Manifest, before: Manifest | None) -> Manifest:
    spec = {"replicas": 1, "revisionHistoryLimit": 10, **manifest["spec"]}
    spec["template"] = _template(spec["template"])
    spec["volumeClaimTemplates"] = [
        {**claim, "spec": _claim_spec(claim["spec"]), "status": {"phase": "Pending"}}
        for claim in spec.get("volumeClaimTemplates", ())
    ]
    return {**manifest, "spec": spec}


def _deployment(manifest: Manifest, before: Manifest | None) -> Manifest:
    spec = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, **manifest["spec"]}
    spec["template"] = _template(spec["template"])
    return {**manifest, "spec": spec}


def _job(manifest: Manifest, before: Manifest | None) -> Manifest:
    spec = {"backoffLimit": 6, "completions": 1, "parallelism": 1, "suspend": False, **manifest["spec"]}
    spec["template"] = _template(spec["template"])
    return {**manifest, "spec": spec}


def _service(manifest: Manifest, before: Manifest | None) -> Manifest:
    spec = {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", **manifest["spec"]}
    if "clusterIP" not in spec:
        spec["clusterIP"] = before["spec"]["clusterIP"] if before is not None else "10.96.0.10"
    ports = [{"protocol": "TCP", **port} for port in spec.get("ports", ())]
    if spec["type"] in ("NodePort", "LoadBalancer"):
        ports = [{"nodePort": 30_000 + port["port"] % 1000, **port} for port in ports]
    return {**manifest, "spec": {**spec, "ports": ports}}


def _claim(manifest: Manifest, before: Manifest | None) -> Manifest:
    return {**manifest, "spec": _claim_spec(manifest["spec"], bound=True)}


def _claim_spec(spec: dict[str, Any], *, bound: bool = False) -> dict[str, Any]:
    found = {"volumeMode": "Filesystem", **spec}
    found["resources"] = {name: _quantities(values) for name, values in spec["resources"].items()}
    if bound:
        found.setdefault("storageClassName", next(iter(STORAGE_CLASSES)))
    return found


_DEFAULTS: Final = {
    "Deployment": _deployment,
    "Job": _job,
    "PersistentVolumeClaim": _claim,
    "Service": _service,
    "StatefulSet": _stateful_set,
}


# --- changes that are refused


def _stateful_set_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    fixed = {name for name in (*before, *after) if name not in _STATEFUL_SET_MUTABLE}
    if any(before.get(name) != after.get(name) for name in fixed):
        return (
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
            "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' "
            "are forbidden"
        )
    return None


def _selector_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    return None if before["selector"] == after["selector"] else "spec.selector: field is immutable"


def _job_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    return None if before["template"] == after["template"] else "spec.template: field is immutable"


def _service_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    return None if before["clusterIP"] == after["clusterIP"] else "spec.clusterIP: field is immutable"


def _claim_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    if {**before, "resources": None, "volumeName": None} != {**after, "resources": None, "volumeName": None}:
        return "spec: Forbidden: spec is immutable after creation except resources.requests for bound claims"
    was, now = (size_bytes(spec["resources"]["requests"]["storage"]) for spec in (before, after))
    if now < was:
        return "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
    if now > was and not STORAGE_CLASSES.get(before["storageClassName"], False):
        return "only dynamically provisioned pvc can be resized and the storageclass must support resize"
    return None


_CHECKS: Final = {
    "Deployment": _selector_change,
    "Job": _job_change,
    "PersistentVolumeClaim": _claim_change,
    "Service": _service_change,
    "StatefulSet": _stateful_set_change,
}
