"""The command `magnetar`."""

from __future__ import annotations

from magnetar.standalone.command_line import application


def main() -> None:
    """Run the command line."""
    application()


if __name__ == "__main__":
    main()
