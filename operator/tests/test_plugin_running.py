"""Questions that commands ask on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

ASKING = """
import asyncio
import typer
from magnetar.operator.plugin import running

def ask() -> None:
    async def work():
        running.confirm("It stops.", yes=False)
        print("agreed")
    with running.guarded():
        asyncio.run(work())

typer.run(ask)
"""


def ask(answer: bytes | signal.Signals) -> tuple[str, int]:
    """What a program that asks has printed, and its exit code. It is answered by a line or by a signal."""
    leader, follower = pty.openpty()
    program = subprocess.Popen([sys.executable, "-c", ASKING], stdin=follower, stdout=follower, stderr=follower)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(leader, 4096)
        if isinstance(answer, bytes):
            os.write(leader, answer)
        else:
            # Once is enough for a person. A program that is just about to wait for a line sees a signal only when the
            # line comes; one that ends already must not get another.
            for _ in range(3):
                time.sleep(0.3)
                program.send_signal(answer)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(timeout=15)
                    break
        exit_code = program.wait(timeout=20)
        shown += os.read(leader, 4096)
    finally:
        program.kill()
        program.wait()
        os.close(leader)
        os.close(follower)
    return shown.decode(), exit_code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "exit_code", "words"),
    [
        (b"y\n", 0, "agreed"),
        (b"n\n", 1, "Nothing was changed."),
        (b"\x04", 1, "Nothing was changed."),
        (signal.SIGINT, 130, "Nothing was changed."),
        (signal.SIGTERM, 130, "Nothing was changed."),
    ],
)
def test_a_question_is_left_by_each_way_out(answer: bytes | signal.Signals, exit_code: int, words: str) -> None:
    shown, code = ask(answer)
    assert words in shown
    assert code == exit_code
