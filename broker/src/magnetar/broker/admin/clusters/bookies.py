"""`/admin/v2/bookies`: the bookies of the cluster, and where they stand (Pulsar `Bookies`).

The document is the one that whoever places ledgers watches: groups of bookies with a rack and a host name each.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.documents import Change, require_writable
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import NOT_FOUND, PRECONDITION_FAILED, AdminError, json, no_content
from magnetar.broker.admin.web.shapes import Shape, required_body, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.ledger.topology import PLACES_PATH
from magnetar.metadata.store import NodeNotFound

BASE: Final = "/admin/v2/bookies"
RACKS: Final = BASE + "/racks-info"
ONE: Final = RACKS + "/{bookie}"

BOOKIE_INFO: Final = Shape({"rack": (text, None), "hostname": (text, None)})

SLASHES_REGION_AWARE: Final = 1
"""Slashes inside a rack's name where placement is region-aware: between region and rack."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = BookieHandlers(context)
    return [
        web.get(BASE + "/all", handlers.all),
        web.get(RACKS, handlers.racks),
        web.get(ONE, handlers.get),
        web.post(ONE, handlers.set),
        web.delete(ONE, handlers.remove),
    ]


class BookieHandlers(Handlers):
    """The handlers, over one broker."""

    async def all(self, _: web.Request) -> web.Response:
        """The bookies that run, also those that take no writes."""
        names = set(await self._local_documents.children(AVAILABLE_PATH))
        names.discard(READ_ONLY_PATH.rpartition("/")[2])
        names.update(await self._local_documents.children(READ_ONLY_PATH))
        return json({"bookies": [{"bookieId": name} for name in sorted(names)]})

    async def racks(self, _: web.Request) -> web.Response:
        """All racks, by group and bookie."""
        return json(await self._local_documents.get(PLACES_PATH) or {})

    async def get(self, request: web.Request) -> web.Response:
        """Where one bookie stands."""
        bookie = request.match_info["bookie"]
        groups: Document = await self._local_documents.get(PLACES_PATH) or {}
        for members in groups.values():
            if bookie in members:
                return json(members[bookie])
        raise not_placed(bookie)

    async def set(self, request: web.Request) -> web.Response:
        """Say where one stands, in the group that `group` names."""
        bookie, group = request.match_info["bookie"], request.query.get("group")
        info = await required_body(request, BOOKIE_INFO)
        if not group:
            raise AdminError(PRECONDITION_FAILED, "Bookie 'group' parameters is missing")
        if (info.get("rack") or "").strip("/").count("/") > self._slashes_max():
            raise AdminError(
                PRECONDITION_FAILED,
                "Bookie 'rack' parameter is invalid, When `RackawareEnsemblePlacementPolicy` is enabled, the rack name "
                "is not allowed to contain slash (`/`) except for the beginning and end of the rack name string. "
                "When `RegionawareEnsemblePlacementPolicy` is enabled, the rack name can only contain one slash (`/`) "
                "except for the beginning and end of the rack name string.",
            )

        def change(document: Document) -> Document:
            without = without_bookie(document, bookie)
            return {**without, group: {**without.get(group, {}), bookie: info}}

        await self._change(change)
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Forget where one stands."""
        bookie = request.match_info["bookie"]

        def change(document: Document) -> Document:
            if not any(bookie in members for members in document.values()):
                raise not_placed(bookie)
            return without_bookie(document, bookie)

        await self._change(change)
        return no_content()

    async def _change(self, change: Change) -> None:
        await require_writable(self._context)
        try:
            await self._local_documents.update(PLACES_PATH, change)
        except NodeNotFound:
            await self._local_documents.create(PLACES_PATH, change({}))

    def _slashes_max(self) -> int:
        return SLASHES_REGION_AWARE if self._context.settings.admin.region_aware_placement else 0


def without_bookie(groups: Document, bookie: str) -> Document:
    """The groups without a bookie; a group that has nobody left goes."""
    left = {
        group: {name: info for name, info in members.items() if name != bookie} for group, members in groups.items()
    }
    return {group: members for group, members in left.items() if members}


def not_placed(bookie: str) -> AdminError:
    """The error for a bookie of which nobody said where it stands."""
    return AdminError(NOT_FOUND, f"Bookie rack placement configuration not found: {bookie}")
