"""What one daemon of a mount leaves, and the next one reads."""

import os
from collections.abc import Iterator
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio

from dieselfs.errors import InvalidInput, NotFound, Unavailable
from dieselfs.importance.score_lines import LossBatch
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.daemon.progress_keeper import (
    SCORES,
    Handover,
    HandoverEntries,
    KeptScores,
    PlanProgress,
    ProgressKeeper,
    encode_handover,
    parse_handover,
)
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.supervision.status import MemoryFile
from tests.support.control import simple_control
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"f/%d" % n, 0o100644, 0, b"x") for n in range(500)], chunk_bytes=20)


@pytest.mark.parametrize("folder", [b"", b"f"])
def test_the_next_daemon_reads_what_this_one_wrote(packed: PackedDataset, folder: bytes) -> None:
    spec = PlanSpec(3, 1, 5, Skips([range(4, 9)]), folder)
    share = Plan(packed.snapshot, spec).share(1, 2, 64, 100, 1, 3, drop_last=True)
    entries = HandoverEntries([PlanProgress(str(ShareName.of(share)), 321)], [3, 5])
    found = parse_handover(encode_handover(entries))
    assert found.pinned == [3, 5]
    assert found.readings[0].position == 321
    again = ShareName.parse(found.readings[0].name.encode()).share(partial(Plan, packed.snapshot))
    assert again.positions().tolist() == share.positions().tolist()
    assert again.nodes().tolist() == share.nodes().tolist()


def test_a_book_is_replaced_by_a_shorter_one() -> None:
    file = MemoryFile("book")
    for pinned in (list(range(1000)), [1]):
        file.write(encode_handover(HandoverEntries([], pinned)))
    assert parse_handover(file.read()) == HandoverEntries([], [1], [], [])
    os.close(file.descriptor)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"readings": [{}], "pinned": []}', b"\xff", b'{"pinned": [1]}']
)
def test_half_a_book_is_none(content: bytes) -> None:
    assert parse_handover(content) == HandoverEntries()


PATIENCE_S = 10.0
PATHS = [b"f/%03d" % number for number in range(50)]
SNAPSHOT = Snapshot(snapshot_bytes(dict.fromkeys([*PATHS, b"other"], file_of())), SOURCE)


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    file = MemoryFile(SCORES)
    yield file
    os.close(file.descriptor)


def share_of(kept: KeptScores, text: bytes) -> Share:
    asked = ShareName.parse(b"policy=importance," + text)
    return asked.share(lambda spec: Plan(SNAPSHOT, spec, losses=kept))


def test_ranks_share_one_order_and_the_next_daemon_repeats_it(file: MemoryFile) -> None:
    first = KeptScores(SNAPSHOT, file)
    first.files.take(LossBatch(PATHS, np.arange(50.0)))
    share = share_of(first, b"folder=f,seed=3,epoch=2")
    whole = share.nodes().tolist()
    shares = [share_of(first, b"folder=f,seed=3,epoch=2,world=2,batch=10,rank=%d" % rank) for rank in (0, 1)]
    spec, files = share.plan.spec, np.sort(share.nodes())
    assert first.drawn(spec, files) is first.drawn(spec, files)
    ranks = [each.nodes() for each in shares]
    assert len(whole) == 50 and sorted(np.concatenate(ranks).tolist()) == sorted(whole)
    assert ranks[0].tolist()[:5] == whole[:5] and ranks[1].tolist()[:5] == whole[5:10]

    second = KeptScores(SNAPSHOT, MemoryFile(SCORES, file.descriptor))
    assert second.files.scored == 50
    assert share_of(second, b"folder=f,seed=3,epoch=2").nodes().tolist() == whole


def test_a_daemon_that_was_killed_while_it_wrote(file: MemoryFile, caplog: pytest.LogCaptureFixture) -> None:
    share_of(KeptScores(SNAPSHOT, file), b"seed=1")
    os.pwrite(file.descriptor, bytes(200), 100)
    assert len(share_of(KeptScores(SNAPSHOT, file), b"seed=1")) == len(PATHS) + 1
    assert "scores of the previous daemon are lost" in caplog.text


def test_what_cannot_be_drawn() -> None:
    kept = KeptScores(SNAPSHOT, None)
    for text in (b"skip=0-1", b"folder=other", b"start=52"):
        with pytest.raises(InvalidInput):
            share_of(kept, text)
    with pytest.raises(NotFound):
        share_of(kept, b"folder=nothing")


async def test_an_unmount_does_not_wait_for_an_order() -> None:
    """The node with the scores of a job may be away when the plans of the last daemon are resumed."""
    is_asked, released, token = trio.Event(), Event(), trio.lowlevel.current_trio_token()
    waited: list[bool] = []

    def share(asked: ShareName) -> Share:
        token.run_sync_soon(is_asked.set)
        waited.append(released.wait(PATIENCE_S))
        raise Unavailable("the node is away")

    state, prefetcher = MemoryFile("state"), SimpleNamespace(restore=lambda chunks: None)
    state.write(encode_handover(HandoverEntries([PlanProgress("policy=importance,seed=1", 5)])))
    control = simple_control(SNAPSHOT)
    keeper = ProgressKeeper(
        SNAPSHOT, Handover(state), cast(Prefetcher, prefetcher), control, share, cast(Any, lambda left: None)
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            await is_asked.wait()
            nursery.cancel_scope.cancel()
        assert not waited
    finally:
        released.set()
        os.close(state.descriptor)
