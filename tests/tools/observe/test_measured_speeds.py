"""The file between `dlcmd bench` and `dlcmd plan`."""

import json
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs_tools.observe.prediction import load
from tests.support.speeds import SPEEDS, write_speeds


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    write_speeds(tmp_path / "new" / "speeds.json")
    found = load(tmp_path / "new" / "speeds.json")
    assert (found.speeds, found.source) == (SPEEDS, "dl://measured")
    assert found.measured_s > 1_600_000_000


def test_without_a_file_the_way_to_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="run 'dlcmd bench' first"):
        load(tmp_path / "speeds.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2, "speeds": {}}',
        '{"format": 2, "speeds": {"first": {"start_s": "x"}}}',
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="run"):
        load(path)


def test_speeds_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    write_speeds(path)
    fields = json.loads(path.read_text())
    fields["speeds"]["fetch_bytes_s"] = 0
    path.write_text(json.dumps(fields))
    with pytest.raises(InvalidInput, match="not a speed"):
        load(path)
