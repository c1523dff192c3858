"""The service of a supervisor: the one command that runs several processes of a component."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from magnetar.core.errors import MagnetarError
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.settings_file import GivenSettings
from magnetar.process.missing_features import MissingFeature
from magnetar.process.service import TRY_AGAIN, Service
from magnetar.process.supervision.child import ProcessFailed
from magnetar.process.supervision.supervisor import KILL_SECONDS, GroupPlan, Supervisor


def group_service(
    name: str,
    known: Callable[[], frozenset[str]],
    ignored: Callable[[], Mapping[str, str]],
    missing: Callable[[], Mapping[str, MissingFeature]],
    plan: Callable[[GivenSettings], GroupPlan],
) -> Service[GroupPlan, Supervisor]:
    """What `run_service` takes. `plan` says what the settings that all processes have make of each; `SettingError`."""

    async def start(found: GroupPlan) -> Supervisor:
        supervisor = Supervisor(found)
        await supervisor.start()
        return supervisor

    return Service(
        name=name,
        known=known,
        ignored=ignored,
        missing=missing,
        settings=plan,
        start=start,
        describe=Supervisor.describe,
        stop_seconds_max=lambda found: found.stop_seconds_max + KILL_SECONDS,
        exit_code=lambda error: error.code if isinstance(error, ProcessFailed) else EXIT_FAILED,
        hint=_hint,
    )


def _hint(error: MagnetarError) -> str:
    return "" if isinstance(error, ProcessFailed) else TRY_AGAIN
