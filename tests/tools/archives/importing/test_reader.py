"""Sources that another process reads: the same records, and what it survives."""

import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_PARTIAL, Damaged, InvalidInput
from dieselfs_tools.archives.importing.channel import record_message, record_of
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.archives.importing.record import FOLDER_MODE, Place, Range, Record
from dieselfs_tools.transfers import messages
from dieselfs_tools.transfers.messages import Reader, Writer
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY
from tests.support.http_files import web_file
from tests.support.importing import QUIET, contents

CONTENT = {f"train/{n:03}.jpg": os.urandom(n * 1000) for n in range(40)} | {"big": os.urandom(3 << 20)}


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with closing(Readers(QUIET)) as readers:
        yield readers


def tar() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in CONTENT.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def zipped(compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as archive:
        for name, content in CONTENT.items():
            archive.writestr(name, content)
    return written.getvalue()


def read(readers: Readers, source: str | Path) -> dict[str, bytes]:
    with readers.read(str(source)) as opened:
        found = {}
        for record in opened:
            record.load()
            if record.content is not None:
                found[record.name.decode()] = record.content
    return found


def test_the_records_are_those_of_the_source(readers: Readers, tmp_path: Path) -> None:
    sources = {"a.tar": tar(), "b.zip": zipped(), "c.tar.gz": gzip.compress(tar(), 1)}
    sources["d.zip.gz"] = gzip.compress(zipped(), 1)  # its index is at the end of what is unpacked
    for name, content in sources.items():
        (tmp_path / name).write_bytes(content)
        assert read(readers, tmp_path / name) == CONTENT
    with readers.read(str(tmp_path / "c.tar.gz"), jobs=1) as opened:
        assert (opened.format.name, opened.is_plain, [*opened]) == ("tar", False, [])


def test_streams_of_a_url(readers: Readers) -> None:
    for content, name in ((tar(), "a.tar"), (zipped(), "a.zip")):
        with web_file(content, name) as file:
            assert read(readers, file.url) == CONTENT


def test_a_folder_asks_for_its_files(readers: Readers) -> None:
    folder = REPOSITORY / "tests/samples/mosaicml"
    assert read(readers, folder) == contents(folder)


def test_what_is_not_taken_is_left_out(readers: Readers, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar())
    with readers.read(str(tmp_path / "a.tar")) as opened:
        assert [record.name.decode() for record in opened] == [*CONTENT]
    with readers.read(str(tmp_path / "a.tar")) as opened:
        first = next(iter(opened))  # the others are never read
        assert first.size == 0
    with readers.read(str(tmp_path / "a.tar"), has_contents=False) as opened:
        places = [record.place for record in opened]
    assert places[1] == Place(str(tmp_path / "a.tar"), 1024)
    assert read(readers, tmp_path / "a.tar") == CONTENT


def test_damage_of_a_member_and_of_the_source(readers: Readers, tmp_path: Path) -> None:
    whole = zipped(zipfile.ZIP_STORED)
    at = whole.index(CONTENT["train/005.jpg"])
    (tmp_path / "a.zip").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    faults = {}
    with readers.read(str(tmp_path / "a.zip")) as opened:
        for record in opened:
            try:
                record.load()
            except Damaged as error:
                faults[record.name] = str(error)
    assert faults == {b"train/005.jpg": "damaged: Bad CRC-32 for file 'train/005.jpg'"}
    (tmp_path / "b.tar").write_bytes(tar()[:-10_240])
    with pytest.raises(Damaged, match="the source ends 3584 bytes early"):
        read(readers, tmp_path / "b.tar")
    (tmp_path / "c").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="the format is not recognized"):
        read(readers, tmp_path / "c")


def lmdb_of_many_bytes(path: Path) -> Path:
    """An environment that says of a value that it ends behind the file: the library reads it there."""
    lmdb = pytest.importorskip("lmdb", reason="the extra 'import' is not installed")
    with (
        lmdb.open(str(path), subdir=False, map_size=64 << 20, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"first", b"good")
        transaction.put(b"second", bytes(10_000))
    content = path.read_bytes()
    at = content.index(b"second") - 8  # of a node: the length of the value, flags, the length of the key
    path.write_bytes(content[:at] + struct.pack("<I", 60 << 20) + content[at + 4 :])
    return path


def test_a_library_that_crashes_is_one_line(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    source = lmdb_of_many_bytes(tmp_path / "x.mdb")
    (tmp_path / "a.tar").write_bytes(tar())
    ran = dlcmd("import", source.name, "a.tar", f"dl://{dataset}/", exit_code=EXIT_DAMAGED)
    assert ran.stderr.splitlines() == [
        "dlcmd: x.mdb: the library that reads it has crashed (SIGBUS): it is damaged, or made to do so"
    ]
    assert dlcmd("cat", f"dl://{dataset}/train/001.jpg").stdout == CONTENT["train/001.jpg"]


FINDER = """
import sys
from importlib.machinery import PathFinder


class Finder:
    roots = {roots!r}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, [cls.roots[name]]) if name in cls.roots else None


sys.meta_path.insert(0, Finder)
sys.path = [path for path in sys.path if path not in Finder.roots.values()]
"""


def test_the_reader_may_import_what_an_editable_install_finds(tmp_path: Path) -> None:
    """Such packages lie in folders that are not in `sys.path`."""
    places = {
        "dieselfs": "",
        "dieselfs_server": "server",
        "dieselfs_client": "client",
        "dieselfs_tools": "tools",
    }
    roots = {name: str(REPOSITORY / place) for name, place in places.items()}
    (tmp_path / "sitecustomize.py").write_text(FINDER.format(roots=roots))
    (tmp_path / "a.tar").write_bytes(tar())
    command = [
        sys.executable,
        "-P",
        "-m",
        "dieselfs_tools.dlcmd",
        "import",
        str(tmp_path / "a.tar"),
        "dl://found/",
    ]
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        command, env=home, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_limits_of_records_and_bytes(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar())
    for option in (("--max-records", "5"), ("--max-size", "10001")):
        ran = dlcmd("import", *option, "a.tar", f"dl://{dataset}-{option[1]}/", exit_code=EXIT_PARTIAL)
        assert ran.stderr.startswith("dlcmd: a.tar: more than ")
        assert len(dlcmd("find", f"dl://{dataset}-{option[1]}", "--type", "f").lines) == 5


def test_what_the_reader_sends_is_not_believed() -> None:
    record = Record(b"a", 5, 3, b"abc", fields={"label": "cat"}, place=Place("a.tar", 512, 7))
    record.pieces = [Range("b", 0, 1), Range("c", 1, 2)]
    message = record_message(record, True)
    found, fault = record_of(message, b"abc")
    assert (found.name, found.content, found.fields, found.place, fault) == (
        *(b"a", b"abc", {"label": "cat"}, Place("a.tar", 512, 7), None),
    )
    assert found.pieces == record.pieces
    wrong = (["b", 0, 1], ["b", -1, 2]), (["b", 0, 3], ["b", 0, 0]), (["b", 0, 4],), (["b", 0, "3"],), ("b",)
    for place, value in (
        *((0, "other"), (1, "a"), (3, -1), (3, 4), (4, 0o010644), (6, {"a": 1}), (9, ["x"])),
        *((10, [*pieces]) for pieces in wrong),
    ):
        with pytest.raises(Damaged, match="a record that cannot be"):
            record_of([*message[:place], value, *message[place + 1 :]], b"abc")
    privileged, _ = record_of(record_message(Record(b"d", 0, mode=FOLDER_MODE | 0o4000), False), b"")
    assert privileged.mode == FOLDER_MODE
    late, _ = record_of(record_message(Record(b"d", 1 << 63), False), b"")
    assert late.fault == "its time is none that a file can have"


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 100,
        struct.pack("<IIQ", messages.MESSAGE_BYTES_MAX + 1, 0, 0),
        struct.pack("<IIQ", 1, messages.PART_BYTES_MAX + 1, 0),
        struct.pack("<IIQ", 1, 0, 0) + b"\x01",
        struct.pack("<IIQ", 2, 9, 1) + b"\x91\x01",
        struct.pack("<IIQ", 5, 0, 0) + b"\xdd\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message(sent: bytes) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, sent)
    os.close(theirs)
    with pytest.raises(Damaged, match="its reader sends"):
        Reader(ours).receive(lambda: None)
    os.close(ours)


def test_messages_cross_the_pipe_in_any_parts() -> None:
    ours, theirs = os.pipe()
    writer, reader = Writer(theirs), Reader(ours)
    for n in range(3):
        writer.put("part", n, content=b"x" * n * 9000)
    writer.flush()
    os.close(theirs)
    for n in range(3):
        assert reader.receive(lambda: None) == (["part", n], b"x" * n * 9000)
    assert reader.receive(lambda: None) is None
    os.close(ours)
