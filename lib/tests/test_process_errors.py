"""What a process says when it cannot run."""

from __future__ import annotations

from magnetar.core.errors import PeerError
from magnetar.metadata.store import StoreUnavailable
from magnetar.process.service import CHECK_THE_STORE, TRY_AGAIN, explain_error


def test_a_metadata_store_that_does_not_answer_is_told_as_that() -> None:
    error = StoreUnavailable("no ZooKeeper answers at 127.0.0.1:2181")
    words = "The metadata store does not answer: no ZooKeeper answers at 127.0.0.1:2181"
    assert explain_error(error, TRY_AGAIN) == (words, CHECK_THE_STORE)
    assert explain_error(PeerError("no"), TRY_AGAIN) == ("PeerError: no", TRY_AGAIN)
