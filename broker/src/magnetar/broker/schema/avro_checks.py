"""Whether a reader's Avro schema can read what a writer's wrote, decided as Pulsar's brokers decide it.

They ask Avro 1.11's resolving grammar, not its SchemaCompatibility (which the `avro` package has), and the two differ:
names of records do not matter, an enum may lose symbols, a record in a reader's union may match by its shape, and two
unions of the same shape match without a closer look. Facts: Avro SchemaValidator, ValidateMutualRead, Resolver; found
out by asking them about some thirty thousand random pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.schema.avro_schema import PRIMITIVES, AvroError, AvroType, default_fits, identity, parse
from magnetar.broker.schema.errors import IncompatibleSchema
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.steps import StepBudget, StepBudgetExceeded
from magnetar.broker.schema.strategy import Strategy

_STEPS_MAX: Final = 100_000
"""Pairs of types, fields and symbols that one comparison looks at: two schemas made of wide unions would otherwise take
minutes (100 000 take a fifth of a second). Real ones need a few hundred, the largest that a broker takes 60 000."""

_ALL_STEPS_MAX: Final = 1_000_000
"""Of a comparison with all versions of a topic. A thousand real ones need less."""

_LABEL_CHARACTERS_MAX: Final = 200
"""Of a name in a reason: reasons are kept until it is known which one counts."""

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def check(existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against old ones, oldest first; all have the text of an Avro schema as their data.

    `IncompatibleSchema` when the strategy does not let it in or a text is no schema."""
    try:
        old_types = [parse(schema.data) for schema in existing]
        new_type = parse(new.data)
    except AvroError as error:
        raise IncompatibleSchema(f"Schema cannot be parsed: {error}") from error
    if strategy is Strategy.ALWAYS_COMPATIBLE or not old_types:
        return
    if not strategy.new_reads_old and not strategy.old_reads_new:
        raise IncompatibleSchema(f"Schema compatibility check with strategy {strategy.value}: no change is allowed")
    steps_left = _ALL_STEPS_MAX
    for old_type in old_types if strategy.transitive else old_types[-1:]:
        for writer, reader, wanted, what in (
            (new_type, old_type, strategy.old_reads_new, "the existing schema cannot read the new one"),
            (old_type, new_type, strategy.new_reads_old, "the new schema cannot read the existing one"),
        ):
            if wanted:
                most = min(steps_left, _STEPS_MAX)
                steps = StepBudget(most)
                _require(why_unreadable(writer, reader, steps), strategy, what)
                steps_left -= most - steps.left


def _require(reason: str | None, strategy: Strategy, what: str) -> None:
    if reason is not None:
        raise IncompatibleSchema(f"Schema compatibility check with strategy {strategy.value}: {what}: {reason}")


def why_unreadable(writer: AvroType, reader: AvroType, steps: StepBudget | None = None) -> str | None:
    """None when the reader's schema reads what the writer's wrote, otherwise the first reason why not. `steps`: how
    much it may look at."""
    try:
        resolver = _Resolver(steps or StepBudget(_STEPS_MAX))
        if identity(writer) != identity(reader):
            resolver.use_aliases(reader)
        return _first_mismatch(resolver.resolve(writer, reader))
    except RecursionError:
        return "nested too deeply"
    except StepBudgetExceeded:
        return "too many combinations of types"


class _Action:
    """What a reader does with one type of a writer: cannot, or can if it can with the parts."""

    __slots__ = ("mismatch", "parts")

    def __init__(self, mismatch: str | None = None) -> None:
        self.mismatch = mismatch
        self.parts: list[_Action] = []


_READS: Final = _Action()


def _first_mismatch(root: _Action) -> str | None:
    """The first mismatch anywhere below; actions of recursive types form a circle."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        action = waiting.pop()
        if action.mismatch is not None:
            return action.mismatch
        if id(action) not in seen:
            seen.add(id(action))
            waiting.extend(reversed(action.parts))
    return None


class _Resolver:
    """Resolves the types of one writer against those of one reader."""

    def __init__(self, steps: StepBudget) -> None:
        self._steps = steps
        self._records: dict[tuple[int, int], _Action] = {}
        self._equivalent: dict[tuple[int, int], bool] = {}
        self._names: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}

    def use_aliases(self, reader: AvroType) -> None:
        """Have the writer's names found by the aliases that the reader's schema gives them."""
        self._collect_aliases(reader, set())

    def resolve(self, writer: AvroType, reader: AvroType) -> _Action:
        self._steps.take()
        if writer.kind == "union":
            return self._from_union(writer, reader)
        if _kind(writer) == _kind(reader):
            return self._same_kind(writer, reader)
        if reader.kind == "union":
            branch = self._branch_for(writer, reader)
            if branch is None:
                return _Action(f"no branch of the reader's union reads {_label(writer)}")
            return self.resolve(writer, branch)
        if reader.kind in _PROMOTIONS.get(writer.kind, ()):
            return _READS
        return _Action(f"{_label(reader)} does not read {_label(writer)}")

    def _same_kind(self, writer: AvroType, reader: AvroType) -> _Action:
        if writer.kind in PRIMITIVES:
            return _READS
        if writer.kind in ("array", "map"):
            assert writer.item is not None
            assert reader.item is not None
            action = _Action()
            action.parts.append(self.resolve(writer.item, reader.item))
            return action
        if _kind(writer) == "record":
            return self._record(writer, reader)
        if self._short_name(writer) != reader.name:
            return _Action(f"{_label(reader)} does not read {_cut(writer.full_name)}")
        if writer.kind == "fixed" and writer.size != reader.size:
            return _Action(f"{_label(reader)} has {reader.size} bytes, not {writer.size}")
        return _READS

    def _from_union(self, writer: AvroType, reader: AvroType) -> _Action:
        action = _Action()
        if not self._union_equivalent(writer, reader):
            action.parts = [self.resolve(branch, reader) for branch in writer.branches]
        return action

    def _record(self, writer: AvroType, reader: AvroType) -> _Action:
        key = (id(writer), id(reader))
        known = self._records.get(key)
        if known is not None:
            return known
        self._steps.take(len(writer.fields) + len(reader.fields))
        action = self._records[key] = _Action()
        renamed = self._fields.get(self._full_name(writer), {})
        written: dict[str, AvroType] = {}
        for field in writer.fields:
            name = renamed.get(field.name, field.name)
            if name in written:
                action.mismatch = f"two fields of {_label(writer)} are {_cut(name)} by alias"
                return action
            written[name] = field.type
        for field in reader.fields:
            field_type = written.get(field.name)
            if field_type is not None:
                action.parts.append(self.resolve(field_type, field.type))
            elif not field.has_default:
                action.mismatch = f"field {_cut(field.name)} of {_label(reader)} has no default and is not written"
                return action
            elif not default_fits(field.type, field.default, self._steps):
                action.mismatch = f"the default of field {_cut(field.name)} of {_label(reader)} does not fit its type"
                return action
        return action

    def _branch_for(self, writer: AvroType, reader: AvroType) -> AvroType | None:
        """The branch of a reader's union that takes a writer's type: exactly, then by shape, then by promotion."""
        by_shape: AvroType | None = None
        name = self._short_name(writer)
        for branch in reader.branches:
            self._steps.take()
            if _kind(branch) != _kind(writer):
                continue
            if not writer.full_name or branch.full_name == self._full_name(writer):
                return branch
            if _kind(writer) == "record" and (by_shape is None or branch.name == name):
                action = self._record(writer, branch)
                self._steps.take(len(action.parts))
                if action.mismatch is None and all(part.mismatch is None for part in action.parts):
                    by_shape = branch
        if by_shape is not None:
            return by_shape
        promoted = _PROMOTIONS.get(writer.kind, ())
        return next((branch for branch in reader.branches if branch.kind in promoted), None)

    def _union_equivalent(self, writer: AvroType, reader: AvroType) -> bool:
        """Same shape and names of fields, in order: Avro then reads the union without looking closer."""
        self._steps.take(1 + len(writer.symbols))
        if _kind(writer) != _kind(reader) or (writer.full_name and self._short_name(writer) != reader.name):
            return False
        if writer.kind == "union":
            return len(writer.branches) == len(reader.branches) and all(
                map(self._union_equivalent, writer.branches, reader.branches)
            )
        if writer.item is not None and reader.item is not None:
            return self._union_equivalent(writer.item, reader.item)
        if _kind(writer) == "record":
            key = (id(writer), id(reader))
            if key not in self._equivalent:
                self._equivalent[key] = True
                self._equivalent[key] = len(writer.fields) == len(reader.fields) and all(
                    theirs.name == ours.name and self._union_equivalent(theirs.type, ours.type)
                    for theirs, ours in zip(writer.fields, reader.fields, strict=True)
                )
            return self._equivalent[key]
        return writer.size == reader.size and writer.symbols == reader.symbols

    def _collect_aliases(self, reader: AvroType, seen: set[int]) -> None:
        if id(reader) in seen:
            return
        seen.add(id(reader))
        for alias in reader.aliases:
            self._names[alias] = reader.full_name
        for field in reader.fields:
            for alias in field.aliases:
                self._fields.setdefault(reader.full_name, {})[alias] = field.name
            self._collect_aliases(field.type, seen)
        if reader.item is not None:
            self._collect_aliases(reader.item, seen)
        for branch in reader.branches:
            self._collect_aliases(branch, seen)

    def _full_name(self, writer: AvroType) -> str:
        """The writer's name after the reader's aliases are applied."""
        return self._names.get(writer.full_name, writer.full_name)

    def _short_name(self, writer: AvroType) -> str:
        return self._full_name(writer).rpartition(".")[2]


def _kind(part: AvroType) -> str:
    """The kind; an error is a record."""
    return "record" if part.kind == "error" else part.kind


def _label(part: AvroType) -> str:
    return f"{part.kind} {_cut(part.full_name)}" if part.full_name else part.kind


def _cut(name: str) -> str:
    return name[:_LABEL_CHARACTERS_MAX]
