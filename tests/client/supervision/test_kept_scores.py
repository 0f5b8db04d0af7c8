"""Scores survive a daemon: what readers got comes again, also after a daemon was killed while it wrote."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.importance.score_lines import LossBatch
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.supervision.kept_scores import SCORES, KeptScores
from dieselfs_client.supervision.status import MemoryFile
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes

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
