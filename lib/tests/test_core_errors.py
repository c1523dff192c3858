"""What is kept of errors."""

from __future__ import annotations

import pytest
from magnetar.core.errors import MagnetarError, Unavailable, forget_frames


def raise_under(before: BaseException, error: BaseException) -> None:
    try:
        raise before
    except BaseException as caught:
        raise error from caught


def test_no_frames_are_kept_of_an_error_its_cause_and_what_it_was_raised_under() -> None:
    cause, context, error = ValueError(), KeyError(), MagnetarError()
    with pytest.raises(ValueError):  # noqa: PT011
        raise cause
    with pytest.raises(MagnetarError):
        try:
            raise context
        except KeyError:
            raise error from cause
    assert error.__context__ is context
    forget_frames(error)
    assert [one.__traceback__ for one in (error, cause, context)] == [None, None, None]


@pytest.mark.timeout(30)
def test_an_error_that_is_its_causes_cause_comes_to_an_end() -> None:
    """One that several wait for: who heard of it said so by another error, and had it again under that one."""
    shared, own = Unavailable("shared"), MagnetarError("own")
    with pytest.raises(MagnetarError):
        raise_under(shared, own)
    with pytest.raises(Unavailable):
        try:
            raise own
        except MagnetarError:
            raise shared  # noqa: B904
    assert own.__cause__ is shared
    assert shared.__context__ is own
    forget_frames(shared)
    assert shared.__traceback__ is None
    assert own.__traceback__ is None
