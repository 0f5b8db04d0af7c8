"""What a node tells about its epoch: the diagnosis of `dlcmd why`, as bytes that any client may have sent."""

from dataclasses import replace

import msgpack
import pytest

from dieselfs.cluster.node_progress import PROGRESS_BYTES_MAX, NodeProgress
from dieselfs.telemetry.diagnosis import diagnosis
from tests.dieselfs.telemetry.test_diagnosis import PLAN, SLOW


def test_it_has_the_newest_epoch_and_the_diagnosis() -> None:
    told = NodeProgress.seen(replace(SLOW, plans=(PLAN, replace(PLAN, epoch=3, position=250))), 60.0)
    assert (told.epoch, told.position, told.positions, told.age_s) == (3, 250, 1000, 60.0)
    found = diagnosis(replace(SLOW, plans=(PLAN,)), ())
    assert (told.limit, told.text, told.advice) == (found.limit, found.text, found.advice)
    assert list(told.spent.items()) == [("server", 1.5), ("verification", 0.1)]
    assert NodeProgress.of(told.encode()) == told
    assert len(told.encode()) < PROGRESS_BYTES_MAX


def test_of_a_longer_one_nothing_is_told() -> None:
    assert NodeProgress(text="x" * 600, advice="y" * 3000).encode() == b""


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xff",
        msgpack.packb([1]),
        msgpack.packb({"epoch": "many"}),
        msgpack.packb({"reads": float("nan")}),
        msgpack.packb({"spent": [1]}),
        b"\x81" * 5000,
    ],
)
def test_what_is_none(encoded: bytes) -> None:
    assert NodeProgress.of(encoded) is None


def test_fields_of_other_versions_are_left_out_or_empty() -> None:
    assert NodeProgress.of(msgpack.packb({"epoch": 2, "colour": "red"})) == NodeProgress(epoch=2)
