"""How much work one judgement of schemas may take, counted in what it looks at."""

from __future__ import annotations


class StepBudgetExceeded(Exception):
    """More work than may be done."""


class StepBudget:
    """So many are left."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    def take(self, count: int = 1) -> None:
        """Use some. Raises `StepBudgetExceeded` when there are not so many."""
        self.left -= count
        if self.left < 0:
            raise StepBudgetExceeded
