"""Carrying out what a plan asks for, one action after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, assert_never

from magnetar.control.errors import ControlUnavailable
from magnetar.core.errors import PeerError
from magnetar.operator.api import ApiServer
from magnetar.operator.children.configuration import digest
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.children.control import token_secret
from magnetar.operator.children.naming import FIELD_MANAGER, FINALIZER, NAME_LABEL, OwnerResource
from magnetar.operator.control.controls import Controls
from magnetar.operator.kubernetes.errors import AlreadyExists, Refused
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.listing import version
from magnetar.operator.observe import View
from magnetar.operator.plan import actions
from magnetar.operator.plan.advice import what_to_correct
from magnetar.operator.resources.quantities import format_bytes

logger: Final = logging.getLogger(__name__)


_NO_DRY_RUN: Final = "does not support dry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the actions of one pass are about."""

    owner: OwnerResource
    manifest: Manifest
    """The custom resource, as the pass saw it."""
    cluster: ClusterContext | None
    view: View[Any]
    """Versions of its children, and how pods are reached."""


class Applied:
    """What was applied to which version of an object: applying that again would change nothing, and the API server
    would still have to find that out. One for each resource; forgotten with the process."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, tuple[str, str]], tuple[str, str]] = {}
        """By the fields' manager, kind and name."""
        self._taken: dict[tuple[str, str], str] = {}
        """What the server would take, by kind and name, for objects that are to be applied later."""

    def known(self, action: actions.Apply, versions: Mapping[tuple[str, str], str]) -> bool:
        """Whether the object still is as this made it."""
        key = _key(action.manifest)
        return key in versions and self._done.get((action.manager, key)) == (digest(action.manifest), versions[key])

    def remember(self, action: actions.Apply, answer: Manifest) -> None:
        """Remember that an object was applied, and what the server made of it."""
        self._done[action.manager, _key(action.manifest)] = (digest(action.manifest), version(answer))

    def would_be_taken(self, manifest: Manifest) -> bool:
        """Whether the server has said so of just this."""
        return self._taken.get(_key(manifest)) == digest(manifest)

    def remember_taken(self, manifest: Manifest) -> None:
        """Remember that the server would take an object. There is one for each workload at most."""
        self._taken[_key(manifest)] = digest(manifest)

    def keep(self, versions: Mapping[tuple[str, str], str]) -> None:
        """Forget what is not there any more."""
        self._done = {key: done for key, done in self._done.items() if key[1] in versions}


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


@contextmanager
def _advised(subject: Subject, manifest: Manifest) -> Iterator[None]:
    """A refusal of this object also says which object, and what a person is to correct."""
    try:
        yield
    except Refused as error:
        name, text = manifest["metadata"]["name"], str(error)
        what = text if name in text else f"{name}: {text}"
        advice = what_to_correct(subject.owner.kind, manifest, text)
        raise type(error)(f"{what}. {advice}" if advice else what) from None


class ActionExecutor:
    """Carries out the actions of one pass. Each may raise what `ApiServer` and `Controls` do."""

    def __init__(self, api: ApiServer, controls: Controls, subject: Subject, applied: Applied) -> None:
        self._api = api
        self._controls = controls
        self._subject = subject
        self._applied = applied
        self._namespace = subject.owner.namespace
        self.owner = subject.owner
        self.growth_refused: Refused | None = None
        """Why a volume does not grow: by a quota, or by its class. Nothing else waits for that, so the rest is done
        before it is raised."""

    async def carry_out(self, action: actions.Action, make_token: Callable[[], str]) -> bool:
        """Any but `EmitEvent` and those about bundles. False: there was nothing to be done."""
        match action:
            case actions.Apply():
                return await self._apply(action)
            case actions.Create(manifest):
                await self._create(manifest)
            case actions.DryRun(manifest):
                await self._check(manifest)
                return False
            case actions.MakeControlToken():
                await self._make_control_token(make_token)
            case actions.Delete(kind=kind, name=name, uid=uid, orphan=orphan):
                await self._api.delete(kind, self._namespace, name, uid=uid, orphan=orphan)
            case actions.Scale(kind=kind, name=name, uid=uid, replicas=replicas):
                await self._patch(kind, name, uid, {"spec": {"replicas": replicas}})
            case actions.GrowVolume():
                return await self._grow(action)
            case actions.Annotate(kind=kind, name=name, uid=uid, annotations=annotations):
                await self._patch(kind, name, uid, {"metadata": {"annotations": dict(annotations)}})
            case actions.SetFinalizer(present=present):
                await self._set_finalizer(present=present)
            case actions.TransferBundle() | actions.SplitBundle() | actions.EmitEvent():
                raise AssertionError("Events are told by the pass, and bundles are moved by `move`")
            case _:
                await self._steer(action)
        return True

    async def move(self, action: actions.BundleAction) -> bool:
        """Move or split a bundle. False: it was not done. That is no failure of the pass: the next round sees where the
        bundle is, and decides anew."""
        token = self._subject.view.reach.token
        source = action.source_broker_id if isinstance(action, actions.TransferBundle) else action.broker_id
        address = self._subject.view.reach.brokers.get(source, "")
        if not address:
            return False
        try:
            if isinstance(action, actions.TransferBundle):
                await self._controls.transfer_bundle(address, token, action.bundle, action.destination_broker_id)
            else:
                await self._controls.split_bundle(
                    address, token, action.bundle, algorithm=action.algorithm, boundaries=action.boundaries
                )
        except (ControlUnavailable, PeerError) as error:
            logger.warning("%s stays as it is: %s", action.bundle, error)
            return False
        return True

    async def _steer(self, action: actions.PodAction) -> None:
        controls, token = self._controls, self._subject.view.reach.token
        match action:
            case actions.StartBookieDrain(pod):
                await controls.start_bookie_drain(self._pod(pod), token)
            case actions.CancelBookieDrain(pod):
                await controls.cancel_bookie_drain(self._pod(pod), token)
            case actions.RetireLostBookie(bookie_id):
                await controls.retire_lost_bookie(self._anybody(), token, bookie_id)
            case actions.StartBrokerDrain(pod):
                await controls.start_broker_drain(self._pod(pod), token)
            case actions.CancelBrokerDrain(pod):
                await controls.cancel_broker_drain(self._pod(pod), token)
            case actions.SetBalanceDriver(driver):
                await controls.set_driver(self._anybody(), token, driver)
            case _:
                assert_never(action)

    async def _apply(self, action: actions.Apply) -> bool:
        if not action.checked and self._applied.known(action, self._subject.view.versions):
            return False
        with _advised(self._subject, action.manifest):
            self._applied.remember(action, await self._api.apply(action.manifest, manager=action.manager))
        return True

    async def _check(self, manifest: Manifest) -> None:
        if self._applied.would_be_taken(manifest):
            return
        try:
            with _advised(self._subject, manifest):
                await self._api.apply(manifest, dry_run=True)
        except Refused as error:
            # A webhook that has effects beside is not asked for a try; it may say something when it is meant.
            if _NO_DRY_RUN not in str(error):
                raise
        self._applied.remember_taken(manifest)

    async def _create(self, manifest: Manifest) -> None:
        with _advised(self._subject, manifest):
            await self._create_owned(manifest)

    async def _create_owned(self, manifest: Manifest) -> None:
        """Afterwards its fields are owned as if it had been applied. What stayed a creator's could not be taken away by
        leaving it out; nor could what has no owner at all, for the API server then takes a `before-first-apply` to own
        it. So one field is said to have been applied, and applying the whole takes the rest."""
        made = await self._api.create(manifest)
        kind, name = _key(manifest)
        owned = {
            "manager": FIELD_MANAGER,
            "operation": "Apply",
            "apiVersion": manifest["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{NAME_LABEL}": {}}}},
        }
        uid = made["metadata"]["uid"]
        await self._patch(kind, name, uid, {"metadata": {"managedFields": [owned]}})
        await self._api.apply(manifest | {"metadata": manifest["metadata"] | {"uid": uid}})

    async def _make_control_token(self, make_token: Callable[[], str]) -> None:
        assert self._subject.cluster is not None, "only a cluster's plan asks for it"
        try:
            await self._api.create(token_secret(self._subject.cluster, make_token()))
        except AlreadyExists:
            # Made by a pass whose answer was lost, or that this one's view is older than.
            logger.debug("the token of %s is there already", self._subject.owner.name)

    async def _grow(self, action: actions.GrowVolume) -> bool:
        wanted = {"resources": {"requests": {"storage": format_bytes(action.size_bytes)}}}
        try:
            await self._patch("PersistentVolumeClaim", action.claim, action.uid, {"spec": wanted})
        except Refused as error:
            self.growth_refused = self.growth_refused or error
            return False
        return True

    async def _patch(self, kind: str, name: str, uid: str, patch: Mapping[str, Any]) -> None:
        await self._api.patch(kind, self._namespace, name, patch, uid=uid)

    async def _set_finalizer(self, *, present: bool) -> None:
        """Merge patches replace lists: only if nobody has changed it since."""
        metadata = self._subject.manifest["metadata"]
        others = [name for name in metadata.get("finalizers") or [] if name != FINALIZER]
        finalizers = [*others, FINALIZER] if present else others
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        owner = self._subject.owner
        await self._patch(owner.kind, owner.name, owner.uid, patch)

    def _pod(self, name: str) -> str:
        address = self._subject.view.reach.pods.get(name)
        if address is None:
            raise ControlUnavailable(f"{name} has no address")
        return address

    def _anybody(self) -> str:
        if not self._subject.view.reach.answering:
            raise ControlUnavailable(f"no pod of {self._subject.owner.name} answers")
        return self._subject.view.reach.answering[0]
