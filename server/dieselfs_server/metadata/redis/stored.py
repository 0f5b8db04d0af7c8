"""The bytes of a dataset's chunks in Redis: a number beside the dataset's record, changed in the same swaps.

The number names the record that it counts. A server that does not know it changes the record alone, and a rebuild
replaces the record; then the number is made again from the records of all chunks when somebody asks for it.
"""

from dieselfs.chunk.format import PREAMBLE_BYTES
from dieselfs.errors import Damaged
from dieselfs.limits import REDIS_SWAPS_MAX
from dieselfs.records import DatasetRecord, DatasetUsage
from dieselfs_server.metadata.redis.client import RedisCalls, read_fields, swap
from dieselfs_server.metadata.redis.datasets import Contended, live_state
from dieselfs_server.metadata.redis.fields import Change
from dieselfs_server.metadata.redis.keys import RECORD, STORED, DatasetKeys
from dieselfs_server.metadata.redis.table import read_chunks
from dieselfs_server.metadata.redis.values import DatasetState, StoredState, unseal


def count_chunk(
    change: Change, value: bytes | None, before: DatasetRecord, after: DatasetRecord, added_bytes: int
) -> None:
    """Add the bytes of a chunk to the number, in the `change` of the record; not to a number that is out of date."""
    known = _stored_bytes(change, value, before)
    if known is not None:
        state = StoredState(after.generation, after.chunks, known + added_bytes)
        change.put(STORED, state.body(), value)


def _stored_bytes(change: Change, value: bytes | None, record: DatasetRecord) -> int | None:
    """The bytes of the chunks of `record`; None if the number counts another record."""
    if not record.chunks:
        return 0
    try:
        state = None if value is None else StoredState.of(unseal(change.key_pair, STORED, value))
    except Damaged:
        return None
    if state is None or (state.generation, state.chunks) != (record.generation, record.chunks):
        return None
    return state.stored_bytes


def read_usage(client: RedisCalls, keys: DatasetKeys) -> DatasetUsage:
    """Raises DatasetGone, Damaged."""
    for _ in range(REDIS_SWAPS_MAX):
        record_value, value = read_fields(client, keys.dataset, RECORD, STORED)
        record, change = live_state(keys, record_value).record, Change(keys.dataset)
        known = _stored_bytes(change, value, record)
        if known is not None:
            return DatasetUsage(record, known)
        lengths = (chunk.header_length + chunk.payload_length for chunk in read_chunks(client, keys))
        known = PREAMBLE_BYTES * record.chunks + sum(lengths)
        # No chunk has come or gone since the record was read, or it would be another.
        change.put(RECORD, DatasetState(record).body(), record_value)
        change.put(STORED, StoredState(record.generation, record.chunks, known).body(), value)
        if swap(client, change):
            return DatasetUsage(record, known)
    raise Contended(f"{keys.owner} changes too fast for its chunks to be counted; try again")
