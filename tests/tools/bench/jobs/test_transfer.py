from pathlib import Path

import pytest

from bench.harness.figures import RunFailed
from bench.harness.forms import LARGE_FILE_BYTES
from bench.jobs.transfer import PASSES, AskingNode, Way, asking_node

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning"  # the clock of pytest-timeout is a thread; the ends never see it
)


def test_each_way_of_asking_brings_every_byte_from_the_peer_and_plain_sockets_move_as_many(
    tmp_path: Path,
) -> None:
    with asking_node(tmp_path / "place", LARGE_FILE_BYTES, chunks=2) as (node, bare, plain):
        asked = 0
        for ask in (AskingNode.shares, AskingNode.all_extents, AskingNode.whole_chunks):
            asked += PASSES * node.size_bytes
            for each in (node, bare):
                run = each.run(ask)
                assert run.duration_s > 0
                assert list(run.parts) == ["own", "other end"]
                assert each.figures()["peer_bytes"] == asked
        for way in Way:
            assert plain.receive(way, 3 << 20) == node.size_bytes


def test_a_run_that_brings_too_little_has_failed(tmp_path: Path) -> None:
    with (
        asking_node(tmp_path / "place", LARGE_FILE_BYTES, chunks=1) as (node, *_),
        pytest.raises(RunFailed, match="expected each time"),
    ):
        node.run(lambda _: node.size_bytes - 1)
