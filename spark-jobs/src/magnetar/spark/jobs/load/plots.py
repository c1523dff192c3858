"""The plan as pictures. Matplotlib is an extra: `pip install 'magnetar-spark[plots]'`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from magnetar.core.limits import MIB
from magnetar.spark.errors import SparkSourceError
from magnetar.spark.jobs.load.capacity import hours_of_week
from magnetar.spark.jobs.load.forecast import Forecast
from magnetar.spark.jobs.load.plan import LoadPlan, time_of

DOTS_PER_INCH: Final = 110
BUNDLES_DRAWN: Final = 15


class NoPlots(SparkSourceError):
    """What draws is not installed."""


def draw(plan: LoadPlan, folder: Path) -> list[Path]:
    """Write PNG files into an existing folder; which. `NoPlots`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPlots("matplotlib is not installed: pip install 'magnetar-spark[plots]', or --no-plots") from None

    written: list[Path] = []

    def save(figure: Any, name: str) -> None:
        path = folder / name
        figure.savefig(path, dpi=DOTS_PER_INCH)
        written.append(path)

    for resource in plan.brokers.resources:
        if max(resource.history.values()) > 0:
            figure = Figure(figsize=(11, 4.2), layout="constrained")
            # What brokers use idle is no part of the forecast, and depends on how many there will be.
            idle = resource.idle * plan.brokers.now
            _series(figure.subplots(), resource.history, resource.forecast, idle=idle)
            figure.suptitle(f"{resource.name} of all brokers ({resource.unit})")
            save(figure, f"brokers-{resource.name.lower().replace(' ', '-')}.png")
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    _series(figure.subplots(), plan.bookies.history, plan.bookies.ingress, divisor=MIB)
    figure.suptitle("What producers send (MiB/s, one copy)")
    save(figure, "ingress.png")
    save(_brokers_needed(plan, Figure(figsize=(11, 3.6), layout="constrained")), "brokers-needed.png")
    if plan.history.bundle_days:
        save(_bundles(plan, Figure(figsize=(11, 5.5), layout="constrained")), "bundles.png")
    return written


def _series(
    axes: Any, history: Mapping[int, float], found: Forecast, *, divisor: float = 1.0, idle: float = 0.0
) -> None:
    hours = sorted(history)
    axes.plot([time_of(hour) for hour in hours], [history[hour] / divisor for hour in hours], lw=0.9, label="so far")
    coming = [time_of(found.first_hour + index) for index in range(len(found.expected))]
    axes.plot(coming, [(value + idle) / divisor for value in found.expected], lw=1.2, label="expected")
    low = [(value + idle) / divisor for value in found.low]
    high = [(value + idle) / divisor for value in found.high]
    axes.fill_between(coming, low, high, alpha=0.25, label="interval")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", ncols=3, fontsize="small")
    axes.tick_params(labelsize="small")


def _brokers_needed(plan: LoadPlan, figure: Any) -> Any:
    needed = hours_of_week(plan.brokers.needed, plan.brokers.first_hour)
    axes = figure.subplots()
    image = axes.imshow(list(needed.values()), aspect="auto", cmap="YlOrRd", vmin=0)
    axes.set_yticks(range(len(needed)), list(needed))
    axes.set_xticks(range(24), [f"{hour:02d}" for hour in range(24)])
    for row, numbers in enumerate(needed.values()):
        for column, number in enumerate(numbers):
            shade = "white" if number > 0.7 * plan.brokers.peak else "black"
            axes.text(column, row, str(number), ha="center", va="center", fontsize=7, color=shade)
    figure.colorbar(image, ax=axes)
    figure.suptitle("Brokers needed by hour (UTC), without spare ones")
    return figure


def _bundles(plan: LoadPlan, figure: Any) -> Any:
    """The busiest bundles of the last days against the limits."""
    split = plan.options.split
    last_day = max(one.day for one in plan.history.bundle_days)
    shares: dict[str, float] = {}
    for one in plan.history.bundle_days:
        if one.day > last_day - 7:
            of_limits = (
                (one.msg_rate_peak, split.bundle_msg_rate_max),
                (one.throughput_peak, split.bundle_bandwidth_bytes_max),
                (one.topics, split.bundle_topics_max),
                (one.sessions, split.bundle_sessions_max),
            )
            share = max((100 * value / limit for value, limit in of_limits if limit > 0), default=0.0)
            name = f"{one.namespace}/{one.range}"
            shares[name] = max(shares.get(name, 0.0), share)
    fullest = sorted(shares.items(), key=lambda item: -item[1])[:BUNDLES_DRAWN][::-1]
    due = {one.bundle for one in plan.splits if one.certain}
    axes = figure.subplots()
    colors = ["tab:red" if name in due else "tab:blue" for name, _ in fullest]
    axes.barh([name for name, _ in fullest], [share for _, share in fullest], color=colors)
    axes.axvline(100, color="black", lw=0.8)
    axes.tick_params(labelsize="small")
    figure.suptitle("Fullest bundles of the last week, in percent of the nearest limit; red: will be too large")
    return figure
