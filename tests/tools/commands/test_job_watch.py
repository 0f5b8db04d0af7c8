"""The progress of a job of a server, as a line and as an object."""

import io
import json
from collections.abc import Callable

import pytest

from dieselfs.rpc.records import CopyProgress
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, progress_json, progress_line, shown
from dieselfs_tools.commands import maintain
from dieselfs_tools.commands.maintain import watched


def test_what_the_server_says_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Callable[[], Reading]] = []

    def noted(output: Output, what: str, read: Callable[[], Reading]) -> object:
        readings.append(read)
        return shown(output, what, read, io.StringIO())

    monkeypatch.setattr(maintain, "shown", noted)
    with watched(Output(), "fsck pets") as progressed:
        assert progress_line("fsck pets", readings[0](), 0, 1) == "fsck pets: 0 of 0 chunks"
        progressed(CopyProgress(10, 0, 40, 0))
        assert (
            progress_line("fsck pets", readings[0](), 0, 2) == "fsck pets: 25%, 10 of 40 chunks, 6.0 s left"
        )
        assert json.loads(progress_json("fsck pets", readings[0](), 0, 2)) == {
            "type": "progress",
            "work": "fsck pets",
            "seconds": 2,
            "unit": "chunk",
            "done": 10,
            "total": 40,
            "is_total_known": True,
            "left_s": 6.0,
        }


def test_bytes_have_a_rate() -> None:
    line = json.loads(progress_json("put", Reading(1, 1024, 2, 4096), 1024, 2))
    assert (line["done_bytes"], line["total_bytes"], line["rate"], line["left_s"]) == (1024, 4096, 512, 6.0)
    assert (line["done"], line["total"], line["unit"]) == (1, 2, "file")
