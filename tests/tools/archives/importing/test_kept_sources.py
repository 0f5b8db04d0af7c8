"""The sources of an attach: what was streamed is not read again, and few stay open."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.source import AttachedSource
from dieselfs.limits import MIB
from dieselfs_tools.archives.importing import attach
from dieselfs_tools.archives.importing.attach import OPEN_MAX, KeptSource, KeptSources

CONTENT = os.urandom(MIB) * 20


class Reads:
    """An `OpenSource` that notes how much is read."""

    mtime_ns = 5
    source = AttachedSource(b"s3://data/a.tar", len(CONTENT), "etag=x")
    descriptor = None

    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return CONTENT[offset : offset + length]

    def check(self) -> None:
        """It never changes."""

    def close(self) -> None:
        """Nothing is open."""


def test_what_was_streamed_is_not_read_again() -> None:
    reads = Reads()
    kept = KeptSource(reads)
    with kept.stream() as stream:
        assert stream.readall() == CONTENT
    for offset, length in ((0, 10), (MIB - 5, 10), (9 * MIB - 3, 8 * MIB), (len(CONTENT) - 10, 10)):
        assert kept.read(offset, length) == CONTENT[offset : offset + length]
    assert reads.read_bytes == len(CONTENT)


def test_what_lies_far_back_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "KEPT_BYTES_MAX", 10 * MIB)
    reads = Reads()
    kept = KeptSource(reads)
    with kept.stream() as stream:
        stream.readall()
    assert kept.read(5, 10) == CONTENT[5:15]
    assert reads.read_bytes == len(CONTENT) + 10


def test_few_sources_stay_open(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.tar") for number in range(OPEN_MAX + 1)]
    for name in names:
        Path(name).write_bytes(b"12345")
    before = len(os.listdir("/proc/self/fd"))
    with closing(KeptSources()) as sources:
        for name in names:
            assert sources.opened(name).read(1, 2) == b"23"
        assert sources.opened(names[-1]) is sources.opened(names[-1])
        assert len(os.listdir("/proc/self/fd")) == before + OPEN_MAX
    assert len(os.listdir("/proc/self/fd")) == before
