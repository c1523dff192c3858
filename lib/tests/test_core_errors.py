"""What is kept of errors."""

from __future__ import annotations

from contextlib import suppress

import pytest
from magnetar.core.errors import MagnetarError, Unavailable, forget_frames


def fail(error: BaseException) -> None:
    raise error


def fail_under(before: BaseException, error: BaseException, cause: BaseException | None = None) -> None:
    """Raise the second one while the first is dealt with."""
    try:
        fail(before)
    except type(before):
        if cause is None:
            fail(error)
        raise error from cause


def test_no_frames_are_kept_of_an_error_its_cause_and_what_it_was_raised_under() -> None:
    cause, context, error = ValueError(), KeyError(), MagnetarError()
    with suppress(ValueError):
        fail(cause)
    with suppress(MagnetarError):
        fail_under(context, error, cause)
    assert (error.__cause__, error.__context__) == (cause, context)
    forget_frames(error)
    assert [one.__traceback__ for one in (error, cause, context)] == [None, None, None]


@pytest.mark.timeout(30)
def test_an_error_that_is_its_causes_cause_comes_to_an_end() -> None:
    """One that several wait for: who heard of it said so by another error, and had it again under that one."""
    shared, own = Unavailable("shared"), MagnetarError("own")
    with suppress(MagnetarError):
        fail_under(shared, own, cause=shared)
    with suppress(Unavailable):
        fail_under(own, shared)
    assert (own.__cause__, shared.__context__) == (shared, own)
    forget_frames(shared)
    assert (shared.__traceback__, own.__traceback__) == (None, None)
