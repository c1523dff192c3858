"""The plan on a terminal."""

from __future__ import annotations

from typing import Final

from magnetar.spark.jobs.load.capacity import hours_of_week
from magnetar.spark.jobs.load.plan import LoadPlan, cluster_resource, mib, time_of, yaml_of
from rich.console import Console
from rich.markup import escape
from rich.table import Table

NAMESPACES_SHOWN: Final = 15
SPLITS_SHOWN: Final = 30
"""The JSON file has all."""


def show(plan: LoadPlan, console: Console) -> None:
    """Show the whole plan."""
    hours = plan.history.hours
    console.print(
        f"[bold]Load plan[/bold] for the week from {time_of(plan.brokers.first_hour):%a %d %b %Y %H:%M} UTC, "
        f"by a history from {time_of(hours[0]):%d %b %H:%M} to {time_of(hours[-1] + 1):%d %b %H:%M}"
    )
    for note in plan.notes:
        console.print(f"• {escape(note)}", highlight=False)
    _show_brokers(plan, console)
    _show_hours(plan, console)
    _show_splits(plan, console)
    _show_bookies(plan, console)
    console.print("\n[bold]Suggested[/bold], for the PulsarCluster (a volume that is larger already stays so):")
    console.print(yaml_of(cluster_resource(plan)), markup=False, highlight=False)
    commands = [one.command for one in plan.splits if one.command and one.certain]
    if commands:
        console.print("\nand before the week begins:")
        for command in commands[:SPLITS_SHOWN]:
            console.print(command, markup=False, highlight=False, soft_wrap=True)


def _show_brokers(plan: LoadPlan, console: Console) -> None:
    brokers, options = plan.brokers, plan.options
    console.print(
        f"\n[bold]Brokers[/bold]: {brokers.recommended} ({brokers.now} now). The peak, "
        f"{time_of(brokers.peak_hour):%a %H:%M}, needs {brokers.peak} at {options.target_percent:g} % of their limits, "
        f"by {brokers.binding}; {options.spare_brokers} spare. One hour in ten needs {brokers.quiet} or fewer."
    )
    table = Table(
        "resource", "a broker's limit", "idle", "peak so far", "expected peak", "upper end", "a week's growth"
    )
    for one in brokers.resources:
        table.add_row(
            one.name,
            f"{one.limit:,.0f} {one.unit}" if one.limit else "not known",
            f"{one.idle:,.0f}",
            f"{max(one.history.values()):,.0f}",
            f"{max(one.forecast.expected):,.0f}",
            f"{one.forecast.peak()[1]:,.0f}",
            f"{one.forecast.growth_per_week:+,.1f}",
        )
    console.print(table)
    for note in brokers.notes:
        console.print(f"• {escape(note)}", highlight=False)


def _show_hours(plan: LoadPlan, console: Console) -> None:
    needed = hours_of_week(plan.brokers.needed, plan.brokers.first_hour)
    if len({number for numbers in needed.values() for number in numbers}) == 1:
        return
    console.print("Brokers needed, by hour (UTC), without spare ones:")
    table = Table("", *(f"{hour:02d}" for hour in range(24)), box=None, padding=(0, 1, 0, 0))
    for day, numbers in needed.items():
        marked = [f"[bold]{number}[/bold]" if number == plan.brokers.peak else str(number) for number in numbers]
        table.add_row(day, *marked)
    console.print(table)


def _show_splits(plan: LoadPlan, console: Console) -> None:
    if not plan.splits:
        console.print("\n[bold]Bundles[/bold]: none will be too large.")
        return
    certain = sum(one.certain and one.parts > 1 for one in plan.splits)
    console.print(f"\n[bold]Bundles[/bold]: {certain} should be split.")
    table = Table("bundle", "parts", "at", "why")
    for one in plan.splits[:SPLITS_SHOWN]:
        places = ", ".join(f"0x{boundary:08x}" for boundary in one.boundaries) or "-"
        parts = str(one.parts) if one.certain else f"({one.parts})"
        table.add_row(one.bundle, parts, places, escape(one.reason))
    console.print(table)
    if len(plan.splits) > SPLITS_SHOWN:
        console.print(f"and {len(plan.splits) - SPLITS_SHOWN} more in the JSON file")


def _show_bookies(plan: LoadPlan, console: Console) -> None:
    bookies, options = plan.bookies, plan.options
    console.print(
        f"\n[bold]Bookies[/bold]: {bookies.recommended} with ledger disks of {bookies.disk_gib:g} GiB, "
        f"{options.spare_bookies} spare. Disks of {options.bookie_disk_gib:g} GiB at most need {bookies.for_disks}, "
        f"writes of {options.bookie_write_mib:g} MiB/s each {bookies.for_writes}. Up to {mib(bookies.stored_bytes)} "
        f"will be stored, for which disks of {mib(bookies.disk_bytes)} together are "
        f"{options.disk_target_percent:g} % full."
    )
    table = Table("namespace", "comes in", "kept for", "copies", "stored at most")
    for one in bookies.namespaces[:NAMESPACES_SHOWN]:
        rate = f"{mib(one.ingress_bytes_per_second)}/s"
        table.add_row(one.namespace, rate, one.kept, str(one.write_quorum), mib(one.stored_bytes))
    console.print(table)
    if len(bookies.namespaces) > NAMESPACES_SHOWN:
        console.print(f"and {len(bookies.namespaces) - NAMESPACES_SHOWN} more in the JSON file")
    for note in bookies.notes:
        console.print(f"• {escape(note)}", highlight=False)
