"""What the standalone prints to its user."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

console = Console(stderr=True, highlight=False)


def show_ready(service_url: str, admin_url: str, data_directory: Path, seconds: float) -> None:
    """Where everything is, and two lines to try it with."""
    table = Table.grid(padding=(0, 2))
    table.add_row("[dim]service URL[/]", f"[bold]{service_url}[/]")
    table.add_row("[dim]admin URL[/]", f"[bold]{admin_url}[/]")
    table.add_row("[dim]data[/]", str(data_directory))
    console.print(Panel(table, title=f"[green]●[/] Magnetar is ready [dim]in {seconds:.2f} s[/]", expand=False))
    console.print("[dim]Try it (pip install pulsar-client):[/]")
    example = (
        f'import pulsar; client = pulsar.Client("{service_url}")\n'
        'client.create_producer("greetings").send(b"hello"); client.close()'
    )
    console.print(Syntax(example, "python", background_color="default"))
    console.print("[dim]Ctrl-C stops it.[/]")


def show_stopped() -> None:
    """The last line of a clean stop."""
    console.print("[green]●[/] Stopped. Everything is on disk.")


def show_error(message: str, hint: str) -> None:
    """What went wrong and what to do."""
    console.print(f"[red]●[/] {message}")
    console.print(f"  [dim]{hint}[/]")
