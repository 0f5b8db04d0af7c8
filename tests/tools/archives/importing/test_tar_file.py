"""Members of tar archives: against `tarfile` and GNU tar, cut off and damaged."""

import io
import os
import stat
import subprocess
import tarfile
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import Damaged, InvalidInput
from dieselfs_tools.archives.importing import tar_file
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.tar_file import ForwardStream, read
from tests.support.importing import contents, parts_of, read_all, source_of

CONTENT = {f"train/{n:05}.{ext}": os.urandom(n * 37) for n in range(30) for ext in ("jpg", "cls")}


def write(path: Path, members: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]  # the mode is any
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), 1_600_000_000, 0o640
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_members_with_their_bytes(tmp_path: Path, mode: str, form: int) -> None:
    members = (
        CONTENT if form == tarfile.USTAR_FORMAT else {**CONTENT, "long/" + "x" * 240 + "/ä.bin": b"long"}
    )
    path = write(tmp_path / "a.tar", members, mode, form)
    assert contents(path) == members
    assert {(one.mode, one.mtime_ns) for one in read_all(path)} == {
        (stat.S_IFREG | 0o640, 1_600_000_000 * 10**9)
    }


def test_zstandard(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra 'import' is not installed")
    members = {**CONTENT, "large": os.urandom(1 << 20)}
    packed = zstandard.compress(write(tmp_path / "a.tar", members).read_bytes())
    (tmp_path / "a.tar.zst").write_bytes(packed)
    assert contents(tmp_path / "a.tar.zst") == members
    (tmp_path / "cut.tar.zst").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(Damaged):
        contents(tmp_path / "cut.tar.zst")


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar", "v7"])
def test_a_tree_as_gnu_tar_packs_it(tmp_path: Path, form: str) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "f").write_bytes(b"content")
    (tree / "f").chmod(0o4751)
    os.utime(tree / "f", ns=(0, 1_600_000_000_123_456_789))
    (tree / "link").symlink_to("f")
    (tree / "sub").mkdir()
    os.link(tree / "f", tree / "sub" / "hard")
    with open(tree / "sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    if form != "v7":  # which has no such type
        os.mkfifo(tree / "pipe")
    options = ["-S"] if form in ("gnu", "pax") else []
    command = ["tar", *options, f"--format={form}", "--sort=name", "-cf", "a.tar", "-C", "tree", "."]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = {one.name.decode().removeprefix("./"): one for one in read_all(tmp_path / "a.tar")}
    assert found["f"].content == b"content" and found["f"].mode == stat.S_IFREG | 0o751
    assert found["f"].mtime_ns % 10**9 == (123_456_789 if form == "pax" else 0)
    assert found["empty"].is_folder and found["link"].target == b"f"
    assert (found["sub/hard"].target, found["sub/hard"].is_hard_link) == (b"../f", True)
    assert found["sparse"].content == bytes(1 << 20) + b"end"
    assert form == "v7" or found["pipe"].fault == "neither file nor folder nor link"


@pytest.mark.parametrize("time", ["1e999999999", "-1e999999999", "inf", "nan", "x"])
def test_a_time_that_cannot_be_is_0(tmp_path: Path, time: str) -> None:
    """Written out, the first one has a milliard of digits."""
    member = tarfile.TarInfo("a")
    member.pax_headers = {"mtime": time}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    assert [one.mtime_ns for one in read_all(tmp_path / "a.tar")] == [0]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_memory_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("a")
    header.type, header.size = kind, 1 << 32
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1 << 33)
    with pytest.raises(Damaged, match="a header of 4294967296 bytes"):
        read_all(tmp_path / "a.tar")


def old_sparse(extended_blocks: int) -> bytes:
    """A file with holes in the old format of GNU tar, whose map has so many further blocks; no end mark."""
    header = tarfile.TarInfo("a")
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[386:482] = b"%011o\0%011o\0" % (1 << 20, 0) * 4
    block[482:483] = b"\1"
    block[483:495] = b"%011o\0" % (1 << 20)
    block[148:156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * ord(" "))
    extended = (b"%011o\0%011o\0" % (512, 512) * 21 + b"\1").ljust(512, b"\0")
    last = (b"%011o\0%011o\0" % (512, 512) * 21).ljust(512, b"\0")
    return bytes(block) + extended * (extended_blocks - 1) + last


def new_sparse(map_of_holes: bytes) -> bytes:
    """In the format 1.0, whose map is text before the content."""
    file = tarfile.TarInfo("a")
    file.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    return file.tobuf(tarfile.PAX_FORMAT) + map_of_holes


def headers_of_headers(count: int) -> bytes:
    """Each of which belongs to the next one."""
    file = tarfile.TarInfo("a")
    file.pax_headers = {"comment": "x"}
    return file.tobuf(tarfile.PAX_FORMAT)[:1024] * count


def archive_headers(count: int) -> bytes:
    return b"".join(
        tarfile.TarInfo.create_pax_global_header({f"comment{number}": "x" * 9000}) for number in range(count)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (old_sparse(1 << 13), "2097152 bytes of headers"),
        (new_sparse(b"999999999\n" + b"1234567\n" * (1 << 19)), "2097152 bytes of headers"),
        (headers_of_headers(1000), "recursion"),
        (archive_headers(1000), "headers"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_many_headers_do_not_fill_memory(content: bytes, message: str, is_first: bool) -> None:
    before = b"" if is_first else tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT)
    tracemalloc.start()
    with pytest.raises(Damaged, match=message):
        _of_bytes(before + content + bytes(1024))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 80 << 20


def test_a_map_of_many_holes_is_read() -> None:
    (record,) = _of_bytes(old_sparse(2000) + bytes(1024))
    assert record.size == 1 << 20


def test_what_is_not_loaded_is_skipped(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for record in read(source_of(str(write(tmp_path / "a.tar", CONTENT)), stack)):
            if record.name.endswith(b"7.cls"):
                record.load()
                assert record.content == CONTENT[record.name.decode()]


def test_an_archive_that_is_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.tar", {"a": b"1" * 700, "b": b"2" * 512, "c": b""}).read_bytes()
    end = 512 + 1024 + 512 + 512 + 512  # then come the blocks of zeros
    expected = {"a": b"1" * 700, "b": b"2" * 512, "c": b""}
    for length in range(512, end + 1, 100):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        found: list[Record] = []
        with pytest.raises(Damaged):
            read_all(tmp_path / "cut.tar", into=found)
        for record in found:
            assert record.content == expected[record.name.decode()]


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    whole = bytearray(write(tmp_path / "a.tar", {"a": b"1" * 512, "b": b"2", "c": b"3"}).read_bytes())
    whole[1024 + 3] ^= 1  # the name of b
    (tmp_path / "a.tar").write_bytes(whole)
    found: list[Record] = []
    with pytest.raises(Damaged, match="a header is damaged"):
        read_all(tmp_path / "a.tar", into=found)
    assert [record.name for record in found] == [b"a"]


@pytest.mark.parametrize("member", [1, 2])
def test_a_zeroed_header_is_not_taken_for_the_end(tmp_path: Path, member: int) -> None:
    whole = bytearray(write(tmp_path / "a.tar", {"a": b"1" * 512, "b": b"2", "c": b"3"}).read_bytes())
    whole[member * 1024 : member * 1024 + 512] = bytes(512)
    (tmp_path / "a.tar").write_bytes(whole)
    found: list[Record] = []
    with pytest.raises(Damaged, match=f"more data after the end mark at {member * 1024}"):
        read_all(tmp_path / "a.tar", into=found)
    assert [record.name for record in found] == [b"a", b"b"][:member]


def test_joined_archives_are_not_read_in_part(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.tar", {"a": b"1"}), write(tmp_path / "b.tar", {"b": b"2"})
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(Damaged, match="joined archives"):
        read_all(first)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_compressed_archive_that_is_cut_off(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "a.tar", CONTENT, f"w:{suffix}")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(Damaged):
        read_all(path)


@given(st.binary(min_size=512, max_size=2048).filter(lambda noise: any(noise[:512])))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises((Damaged, InvalidInput)):
        list(_of_bytes(noise + b"x" * 512))


def _of_bytes(content: bytes) -> list[Record]:
    class Source:
        begin = end = 0

        def stream(self) -> io.BytesIO:
            return io.BytesIO(content)

        def place(self, start: int) -> None:
            return None

    return list(read(Source()))  # type: ignore[arg-type]  # all that `read` needs of it


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_parts_have_each_member_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int) -> None:
    monkeypatch.setattr(tar_file, "PART_BYTES", 2048)
    long = {} if form == tarfile.USTAR_FORMAT else {f"{n}/" + "x" * 240: b"%d" % n for n in range(9)}
    path = write(tmp_path / "a.tar", {**CONTENT, **long}, form=form)
    parts = parts_of(path, jobs=2)
    assert len(parts) > 10
    members = [(one.name, one.content) for part in parts for one in read_all(path, part=part)]
    assert members == [(one.name, one.content) for one in read_all(path)]
    assert parts_of(path, jobs=1) == [(0, 0)]


def test_the_last_part_has_the_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_file, "PART_BYTES", 2048)
    path = write(tmp_path / "a.tar", CONTENT)
    os.truncate(path, path.stat().st_size // 2)
    *whole, last = parts_of(path, jobs=2)
    for part in whole:
        read_all(path, part=part)
    with pytest.raises(Damaged):
        read_all(path, part=last)
    (tmp_path / "global.tar").touch()
    with tarfile.open(tmp_path / "global.tar", "w", pax_headers={"comment": "of all"}) as archive:
        for name in CONTENT:
            archive.addfile(tarfile.TarInfo(name))
    assert parts_of(tmp_path / "global.tar", jobs=2) == [(0, 0)]


def test_a_stream_seeks_forwards_only() -> None:
    stream = ForwardStream(io.BytesIO(bytes(range(100))))
    assert (stream.read(3), stream.seek(10), stream.read(1), stream.tell()) == (b"\0\1\2", 10, b"\n", 11)
    assert stream.seek(500) == 100
    with pytest.raises(tarfile.StreamError):
        stream.seek(3)
