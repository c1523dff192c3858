"""When a task that writes may end."""

from __future__ import annotations

import asyncio
from typing import cast

from magnetar.client.client import PulsarClient
from magnetar.client.message import MessageId
from magnetar.spark.sink.rows import OutgoingEntry
from magnetar.spark.sink.sending import PartitionSender, SendingTask, TaskSender


async def test_a_task_ends_when_every_row_has_its_receipt() -> None:
    """Spark commits the batch then, and never sends it again."""
    sender = TaskSender(cast("PulsarClient", None), cast("SendingTask", None))
    receipts: list[asyncio.Future[MessageId]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for receipt in receipts:
        sender._waiting.append((receipt, cast("PartitionSender", None), OutgoingEntry([], 100, alone=False)))
    finishing = asyncio.ensure_future(sender.finish())
    for receipt in reversed(receipts):
        for _ in range(10):
            await asyncio.sleep(0)
        assert not finishing.done()
        receipt.set_result(MessageId(1, 0))
    await finishing
