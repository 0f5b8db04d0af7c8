"""Which sources a server reads, and what becomes of a source that is not what it was."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.chunk.format import Preamble
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, NotFound
from dieselfs_server.store.sources import Sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.tar").write_bytes(b"0123456789")
    (tmp_path / "secret").write_bytes(b"0123456789")
    return tmp_path / "root"


def source_of(path: Path, offset: int = 0) -> AttachedSource:
    status = os.stat(path)
    return AttachedSource(os.fsencode(path), status.st_size, f"mtime_ns={status.st_mtime_ns}", offset)


def test_files_below_a_root(root: Path) -> None:
    sources = Sources((str(root),))
    opened = sources.open(source_of(root / "a.tar"))
    assert opened.read(0, 10) == b"0123456789"
    opened.close()
    Sources(None).open(source_of(root.parent / "secret")).close()


def test_nothing_without_roots(root: Path) -> None:
    with pytest.raises(AccessDenied, match="this server attaches nothing"):
        Sources().open(source_of(root / "a.tar"))


def test_no_way_out_of_a_root(root: Path) -> None:
    secret = root.parent / "secret"
    (root / "link").symlink_to(secret)
    (root / "folder").symlink_to(root.parent)
    (root.parent / "root-2").mkdir()
    (root.parent / "root-2" / "file").write_bytes(b"0123456789")
    sources = Sources((str(root),))
    for path in (secret, root / "link", root / "folder" / "secret", root.parent / "root-2" / "file"):
        with pytest.raises(AccessDenied, match="not below attach_roots"):
            sources.open(source_of(path))
    with pytest.raises(AccessDenied, match="not below attach_roots"):
        sources.open(replace(source_of(secret), location=os.fsencode(root) + b"/../secret"))


def test_a_root_may_be_a_link(root: Path) -> None:
    (root.parent / "data").symlink_to(root)
    Sources((str(root.parent / "data"),)).open(source_of(root / "a.tar")).close()


def test_another_version_is_another_object(root: Path) -> None:
    source = source_of(root / "a.tar")
    for other in (replace(source, size_bytes=9), replace(source, mark="mtime_ns=1")):
        with pytest.raises(Damaged, match=r"a\.tar: it has changed since it was attached .*attach it again"):
            Sources(None).open(other)


def test_a_chunk_whose_source_cannot_be_read_is_damaged(root: Path) -> None:
    source = source_of(root / "a.tar")
    with pytest.raises(Damaged, match=r"attached source .* attaches nothing"):
        Sources().open_attached(source)
    os.unlink(root / "a.tar")
    with pytest.raises(Damaged, match=r"attached source .*a\.tar: No such file"):
        Sources(None).open_attached(source)
    with pytest.raises(NotFound):
        Sources(None).open(source)


def test_a_payload_is_a_range_of_the_open_file(root: Path) -> None:
    preamble = Preamble(bytes(16), 100, 5, bytes(32), bytes(32), is_attached=True)
    with Sources(None).open_payload(preamble, source_of(root / "a.tar", offset=3)) as opened:
        assert os.pread(opened.descriptor, opened.length, opened.start) == b"34567"
        assert opened.name.endswith("a.tar, attached as chunk ---------------------- from offset 3")
