"""The reader of a load sees what is not as it must be, and writes all of it down."""

import json
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from lab.namespace import wait_for
from lab.reader import Moment, content_of, read_once, read_until


def test_other_bytes_and_missing_ones_are_failures(tmp_path: Path) -> None:
    good = content_of("7", 1000)
    for content, is_right in (
        (good, True),
        (good[:-1] + b"x", False),
        (content_of("8", 1000), False),
        (b"", False),
    ):
        (tmp_path / "7").write_bytes(content)
        if is_right:
            read_once(str(tmp_path), "7")
        else:
            with pytest.raises(AssertionError, match="7: wrong bytes"):
                read_once(str(tmp_path), "7")
    with pytest.raises(FileNotFoundError):
        read_once(str(tmp_path), "8")


def test_every_read_is_in_the_record(tmp_path: Path) -> None:
    folder, record, stop = (tmp_path / name for name in ("folder", "record", "stop"))
    folder.mkdir()
    (folder / "1").write_bytes(content_of("1", 100))
    (folder / "2").write_bytes(content_of("1", 100))
    reader = Thread(target=read_until, args=(str(folder), record, stop, 5, 200.0))
    reader.start()
    try:
        wait_for(lambda: record.exists() and record.read_text().count("\n") >= 3, "it has read for a while")
    finally:
        stop.touch()
        reader.join()
    moments = [Moment(**json.loads(line)) for line in record.read_text().splitlines()]
    failures = [failure for moment in moments for failure in moment.failures]
    reads = sum(moment.reads for moment in moments)
    assert 0 < len(failures) < reads
    assert set(failures) == {"AssertionError: 2: wrong bytes"}
    assert all(0 < moment.worst_s <= moment.ended_s - moment.began_s for moment in moments)
    assert all(one.ended_s == next_one.began_s for one, next_one in pairwise(moments))
