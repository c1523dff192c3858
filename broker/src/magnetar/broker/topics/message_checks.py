"""What looks at published messages one by one: sizes, delays, encryption, duplicates, transactions.

Only topics with such a policy come here, those with transactions, and what other clusters replicate. What is not stored
is answered in its turn among the receipts of the rest.
(Pulsar: `PersistentTopic.publishMessage`, `Producer.checkAndStartPublish`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.replicated_message import ReplicatedMessage, read_replicated
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.source_position import MARKER_RECEIPT
from magnetar.broker.topics.deduplication import DuplicateStatus
from magnetar.broker.transactions.buffers.markers import ABORT_MARKER, COMMIT_MARKER
from magnetar.wire.pulsar.errors import BadMetadata, ServerError
from magnetar.wire.pulsar.metadata import ABSENT, metadata_bounds, skim, with_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.topics.deduplication import Deduplication
    from magnetar.broker.topics.producer import PublishBatch
    from magnetar.broker.transactions.buffers.buffer import TransactionBuffer

Refusal = tuple[ServerError | None, str]
"""Why a message is not stored; no code: because it is already."""

ALREADY_STORED: Final[Refusal] = (None, "")

NO_BUFFER: Final = "Transaction buffer disable!"
"""To transactional messages for topics without a buffer: in Apache's words, for which clients may look."""

FORGED_MARKER: Final = "The end of a transaction is told to its coordinator; clients publish no markers"

MARKER_TYPE: Final = (b"\xa0\x01", b"\xa0\x81")
"""How a field `marker_type` begins (number 20, a varint), and with a tag that is longer than it need be, which parsers
take as well."""

TRANSACTION_NUMBERS: Final = (b"\xb0\x01", b"\xb0\x81")
"""How a field `txnid_least_bits` begins (number 22, a varint), in both forms."""

UNNAMED_TRANSACTION: Final = "The message says that it is of a transaction, and its command names none"

NO_TRANSACTION: Final = (ABSENT, ABSENT)
"""The transaction in the metadata of a message that names none."""

OTHER_TRANSACTION: Final = "The message names another transaction than its command"

NO_SOURCE_POSITION: Final = (
    f"Cannot determine whether the message is a duplicate: property {SOURCE_POSITION_PROPERTY} is not <ledger>:<entry>"
)
"""To a replicator that goes by positions, whose message has none. It is not stored: the replicator sends it again."""


def publish_checked(
    batch: PublishBatch,
    policies: EffectivePolicies,
    topic_name: str,
    deduplication: Deduplication | None,
    buffer: TransactionBuffer | None,
    append: Callable[[PublishBatch], None],
) -> None:
    """Append what may be stored and answer the rest. The order of the batch is kept."""
    refusals = _refusals(batch, policies)
    if batch.producer.is_replicator:
        batch.replicated = [read_replicated(payload) for payload in batch.payloads]
        if batch.producer.identity.source_positions:
            _add_unplaced(batch.replicated, refusals)
    unstorable: dict[int, Refusal] = {}
    if buffer is not None:
        _add_markers(batch, refusals)
        _add_unnamed(batch, refusals)
    if batch.transactions is not None:
        _add_ended(batch, batch.transactions, buffer, refusals, unstorable)
    # What is stored has its receipt, also when its transaction has ended since. What is never stored has none: once a
    # later message is, its sequence id alone would look like that of a duplicate to whoever did not hear the refusal.
    if deduplication is not None:
        _add_duplicates(batch, topic_name, deduplication, refusals, unstorable)
    refusals = unstorable | refusals
    if batch.replicated is not None and batch.producer.identity.source_positions:
        _answer_by_position(batch, batch.replicated, refusals)
    if not refusals:
        _name_transactions(batch)
        append(batch)
        return
    producer = batch.producer
    # Each run is a batch by itself from here on.
    producer.batches_pending -= 1
    start = 0
    count = len(batch.payloads)
    while start < count:
        refusal = refusals.get(start)
        end = start + 1
        while end < count and refusals.get(end) == refusal:
            end += 1
        part = batch.part(start, end, sum(_messages_in(payload) for payload in batch.payloads[start:end]))
        producer.batches_pending += 1
        if refusal is None:
            _name_transactions(part)
            append(part)
        else:
            producer.answer_in_order(part, *refusal)
        start = end


def _refusals(batch: PublishBatch, policies: EffectivePolicies) -> dict[int, Refusal]:
    refusals: dict[int, Refusal] = {}
    size_bytes_max = policies.message_size_bytes_max
    delay_ms_max = policies.delay_ms_max if policies.delayed_delivery else 0
    for index, payload in enumerate(batch.payloads):
        if 0 < size_bytes_max < len(payload) and not (batch.has_chunks and _is_chunk(payload)):
            refusals[index] = (ServerError.NOT_ALLOWED_ERROR, "Exceed maximum message size")
        elif delay_ms_max > 0 or policies.encryption_required:
            refusal = _refusal_by_metadata(payload, policies, delay_ms_max)
            if refusal is not None:
                refusals[index] = refusal
    return refusals


def _is_chunk(payload: bytes) -> bool:
    try:
        return skim(payload).num_chunks > 1
    except BadMetadata:
        return False


def _refusal_by_metadata(payload: bytes, policies: EffectivePolicies, delay_ms_max: int) -> Refusal | None:
    try:
        metadata = skim(payload)
    except BadMetadata:
        return None
    if policies.encryption_required and not metadata.encrypted:
        return ServerError.METADATA_ERROR, "Messages must be encrypted"
    if 0 < delay_ms_max < metadata.deliver_at_ms - metadata.publish_time_ms and metadata.deliver_at_ms > 0:
        return ServerError.NOT_ALLOWED_ERROR, f"Exceeds max allowed delivery delay of {delay_ms_max} milliseconds"
    return None


def _add_unplaced(replicated: list[ReplicatedMessage | None], refusals: dict[int, Refusal]) -> None:
    for index, message in enumerate(replicated):
        if index not in refusals and (message is None or (message.position is None and not message.is_marker)):
            refusals[index] = (ServerError.PERSISTENCE_ERROR, NO_SOURCE_POSITION)


def _answer_by_position(
    batch: PublishBatch, replicated: list[ReplicatedMessage | None], refusals: dict[int, Refusal]
) -> None:
    """Receipts have the message's position at its source in place of sequence ids: by it the replicator knows which of
    its messages is meant, also after it has begun anew. Errors keep the sequence ids of the command."""
    for index, message in enumerate(replicated):
        if message is None or refusals.get(index, ALREADY_STORED) != ALREADY_STORED:
            continue
        if message.is_marker:
            batch.highest_sequence_ids[index] = MARKER_RECEIPT
        elif message.position is not None:
            batch.sequence_ids[index], batch.highest_sequence_ids[index] = message.position


def _add_duplicates(
    batch: PublishBatch,
    topic_name: str,
    deduplication: Deduplication,
    refusals: dict[int, Refusal],
    unstorable: Container[int],
) -> None:
    statuses = deduplication.check(batch, refusals, unstorable)
    if statuses is None:
        return
    name = batch.producer.name
    unknown = f"[{topic_name}][{name}]Cannot determine whether the message is a duplicate at this time"
    for index, status in enumerate(statuses):
        if status is DuplicateStatus.STORED:
            refusals[index] = ALREADY_STORED
        elif status is DuplicateStatus.UNKNOWN:
            refusals[index] = (ServerError.PERSISTENCE_ERROR, unknown)


def _add_markers(batch: PublishBatch, refusals: dict[int, Refusal]) -> None:
    """The ends of transactions are brokers' to write: the next owner takes them for true. Apache's brokers take them
    from anybody. The markers of replicated subscriptions come from other clusters, and pass."""
    for index, payload in enumerate(batch.payloads):
        if _may_have(payload, MARKER_TYPE) and _is_end_marker(payload):
            refusals[index] = (ServerError.NOT_ALLOWED_ERROR, FORGED_MARKER)


def _may_have(payload: bytes, tags: tuple[bytes, bytes]) -> bool:
    """Whether a field with such a tag may be in the metadata. To look for it among all of its bytes costs less than to
    read the fields, and most messages have none."""
    try:
        start, end = metadata_bounds(payload)
    except BadMetadata:
        return False
    return payload.find(tags[0], start, end) >= 0 or payload.find(tags[1], start, end) >= 0


def _is_end_marker(payload: bytes) -> bool:
    try:
        return skim(payload).marker_type in (COMMIT_MARKER, ABORT_MARKER)
    except BadMetadata:
        return False


def _add_unnamed(batch: PublishBatch, refusals: dict[int, Refusal]) -> None:
    """The next owner goes by what messages say: one whose command names no transaction would be shown now, and begin
    one then that nobody ends. Apache's brokers take it. Replicators leave such numbers out."""
    transactions = batch.transactions
    for index, payload in enumerate(batch.payloads):
        if (transactions is not None and transactions[index] is not None) or index in refusals:
            continue
        if _may_have(payload, TRANSACTION_NUMBERS):
            of = _transaction_of(payload)
            if of is not None and of[0] >= 0 and of[1] >= 0:
                refusals[index] = (ServerError.NOT_ALLOWED_ERROR, UNNAMED_TRANSACTION)


def _add_ended(
    batch: PublishBatch,
    transactions: list[tuple[int, int] | None],
    buffer: TransactionBuffer | None,
    refusals: dict[int, Refusal],
    unstorable: dict[int, Refusal],
) -> None:
    """`unstorable` are those that may have been stored before, which deduplication can tell."""
    for index, transaction in enumerate(transactions):
        if transaction is None or index in refusals:
            continue
        text = NO_BUFFER if buffer is None else buffer.refusal(transaction)
        if text:
            unstorable[index] = (ServerError.NOT_ALLOWED_ERROR, text)
        elif _transaction_of(batch.payloads[index]) not in (transaction, NO_TRANSACTION):
            refusals[index] = (ServerError.NOT_ALLOWED_ERROR, OTHER_TRANSACTION)


def _name_transactions(batch: PublishBatch) -> None:
    """The Go client names the transaction in SEND alone (pulsar-client-go#1498), and readers and the topic's next
    owner go by the metadata: there it is written, as Java's client does. Apache's broker shows such a message also
    after an abort.

    The batch counts as large as it came: of so much is its connection relieved once it is stored."""
    for index, transaction in enumerate(batch.transactions or ()):
        payload = batch.payloads[index]
        if transaction is not None and _transaction_of(payload) == NO_TRANSACTION:
            batch.payloads[index] = with_transaction(payload, *transaction)


def _transaction_of(payload: bytes) -> tuple[int, int] | None:
    """What a message itself says, by which readers and the topic's next owner go."""
    try:
        metadata = skim(payload)
    except BadMetadata:
        return None
    return metadata.txnid_most_bits, metadata.txnid_least_bits


def _messages_in(payload: bytes) -> int:
    try:
        return skim(payload).num_messages
    except BadMetadata:
        return 1
