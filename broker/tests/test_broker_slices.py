from __future__ import annotations

import pytest
from magnetar.broker.slices import in_slices


async def test_results_stand_in_order_and_errors_end_it_after_their_slice() -> None:
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        if number == 4:
            raise ValueError("four")
        return number * number

    assert await in_slices(work, range(4), 3) == [0, 1, 4, 9]
    assert await in_slices(work, []) == []
    begun.clear()
    with pytest.raises(ValueError, match="four"):
        await in_slices(work, range(9), 3)
    assert begun == [0, 1, 2, 3, 4, 5]
