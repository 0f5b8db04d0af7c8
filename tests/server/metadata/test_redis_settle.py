"""What a chunk does to a bucket, decided from what was read. Which entry counts, the conformance suite holds."""

from dieselfs_server.metadata.redis_keys import DatasetKeys
from dieselfs_server.metadata.redis_parts import ChunkEntries, Part, split_by_bucket
from dieselfs_server.metadata.redis_settle import Needs, Seen, Settled, settle
from dieselfs_server.metadata.redis_standing import Standing
from dieselfs_server.metadata.redis_values import receipt_of, unseal
from tests.support.metadata_chunks import Put, chunk_id, delete, pack

KEYS = DatasetKeys(b"dieselfs:", "pets", bytes(8))


def of_chunk(number: int, *puts: Put) -> tuple[Part, ChunkEntries]:
    _, header = pack(puts, chunk_id(number))
    (part,) = split_by_bucket(KEYS, header.paths)
    return part, ChunkEntries.of(chunk_id(number), header)


def take_over(seen: Seen, part: Part, settled: Settled) -> None:
    """As if Redis had done what was decided."""
    for change in settled.changes:
        for name, value in zip(change.names, change.values, strict=True):
            if change.drawer not in (part.keys.receipts, part.keys.folders, part.keys.pieces):
                seen.standings[change.drawer.key, name] = value


def test_new_paths_need_no_reading() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), delete(b"d/b", 2))
    settled = settle(part, chunk, Seen())
    assert isinstance(settled, Settled)
    assert (settled.effects.files, settled.effects.total_bytes, settled.effects.members) == (1, 3, {b"d": 1})
    receipt, _, standings = settled.changes
    assert receipt_of(unseal(receipt.drawer, chunk_id(1), receipt.values[0])).members == {b"d": 1}
    assert (standings.names, standings.in_hash, standings.expected) == ([b"a", b"b"], [1], {})


def test_the_same_chunk_again_does_nothing() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), delete(b"d/b", 2))
    seen = Seen()
    first = settle(part, chunk, seen)
    assert isinstance(first, Settled)
    take_over(seen, part, first)
    again = settle(part, chunk, seen)
    assert isinstance(again, Settled)
    assert (
        again.effects.files,
        again.effects.total_bytes,
        dict(again.effects.members),
        dict(again.effects.dead),
    ) == (
        0,
        0,
        {},
        {},
    )
    assert [change.drawer for change in again.changes] == [part.keys.receipts, part.keys.folders]


def test_what_is_replaced_is_dead() -> None:
    seen = Seen()
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), Put(b"d/b", 9, size=4))
    first = settle(part, chunk, seen)
    assert isinstance(first, Settled)
    take_over(seen, part, first)
    newer, chunk = of_chunk(2, delete(b"d/a", 5), Put(b"d/b", 5, size=1))
    second = settle(newer, chunk, seen)
    assert isinstance(second, Settled)
    assert second.effects.dead == {chunk_id(1): [0], chunk_id(2): [1]}
    assert (second.effects.files, second.effects.total_bytes, second.effects.members) == (-1, -3, {b"d": -1})


def test_a_piece_is_kept_until_the_file_is_whole() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=5, length=2))
    seen = Seen()
    needs = settle(part, chunk, seen)
    assert isinstance(needs, Needs) and needs
    needs.note(seen, [[None], []], [])
    needs = settle(part, chunk, seen)
    assert isinstance(needs, Needs) and len(needs.pieces) == 1
    needs.note(seen, [[None]], [])
    settled = settle(part, chunk, seen)
    assert isinstance(settled, Settled)
    assert (settled.effects.files, dict(settled.effects.members)) == (0, {})
    (standings,) = [change for change in settled.changes if change.drawer is part.folders[0].drawer]
    standing = Standing.of(unseal(standings.drawer, b"a", standings.values[0]))
    assert (standing.is_live, standing.gathered, standings.in_hash) == (False, ((1, 5, 2),), [0])
