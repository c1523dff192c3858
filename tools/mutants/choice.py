"""Which of the mutants of a module are planted: few, spread over its functions, the same ones each time."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from tools.mutants.model import Mutant


def choose(mutants: Sequence[Mutant], count: int, seed: int, fits: Callable[[Mutant], bool]) -> list[Mutant]:
    """At most `count` that fit, function by function in turn.

    A change of one function leaves the order of the others as it was."""
    by_function: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_function[mutant.function].append(mutant)
    for of_one in by_function.values():
        of_one.sort(key=lambda mutant: _rank(f"{seed} {mutant.key}"))
    waiting = deque(by_function[name] for name in sorted(by_function, key=lambda name: _rank(f"{seed} {name}")))
    chosen: list[Mutant] = []
    while waiting and len(chosen) < count:
        of_one = waiting.popleft()
        while of_one and not fits(of_one[0]):
            of_one.pop(0)
        if of_one:
            chosen.append(of_one.pop(0))
            waiting.append(of_one)
    return sorted(chosen, key=lambda mutant: mutant.start)


def compiles(mutant: Mutant, source: str) -> bool:
    """Whether the mutated source is Python at all, and not what it was before."""
    try:
        mutated = ast.parse(mutant.apply(source))
    except SyntaxError:
        return False
    return ast.dump(mutated) != _dumped(source)


@functools.lru_cache(maxsize=8)  # Mutants of one module are looked at one after the other.
def _dumped(source: str) -> str:
    return ast.dump(ast.parse(source))


def _rank(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
