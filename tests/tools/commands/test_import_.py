"""dlcmd import: into a dataset and back, continuing after an interruption, names, damage, standard input."""

import io
import os
import signal
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dieselfs.errors import (
    EXIT_DAMAGED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_PARTIAL,
    EXIT_USAGE,
)
from tests.support.dlcmd import Dlcmd
from tests.support.http_files import web_file

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"
CONTENT = {f"train/{n:05}.jpg": os.urandom(3000) for n in range(40)}


def tar_of(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_600_000_000
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def stored(dlcmd: Dlcmd, dataset: str) -> dict[str, bytes]:
    """All files of a dataset."""
    dlcmd("get", "-r", "-f", f"dl://{dataset}", "got")
    got = dlcmd.folder / "got"
    return {str(path.relative_to(got)): path.read_bytes() for path in got.rglob("*") if path.is_file()}


def test_shards_become_files(dlcmd: Dlcmd, dataset: str) -> None:
    names = list(CONTENT)
    for number in range(2):
        shard = {name: CONTENT[name] for name in names[number::2]}
        (dlcmd.folder / f"{number}.tar").write_bytes(tar_of(shard))
    ran = dlcmd("import", "0.tar", "1.tar", f"dl://{dataset}/in")
    assert ran.text.startswith("stored 40 files (117 KiB) in ")
    assert f"; the first: 0.tar: train/00000.jpg -> dl://{dataset}/in/train/00000.jpg\n" in ran.text
    assert stored(dlcmd, dataset) == {f"in/{name}": content for name, content in CONTENT.items()}
    again = dlcmd("import", "--json", "0.tar", "1.tar", f"dl://{dataset}/in/").summary
    assert (again["stored"], again["skipped"], again["failed"]) == (0, 40, 0)
    assert dlcmd("import", "-f", "--json", "0.tar", f"dl://{dataset}/in/").summary["stored"] == 20


def test_a_dry_run_stores_nothing(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "a.tar").write_bytes(tar_of({"a/b.jpg": b"1234"}))
    ran = dlcmd("import", "-n", "--name", "{source}/{index:03}{ext}", "a.tar", f"dl://{dataset}")
    assert ran.lines == [
        f"would import a.tar: a/b.jpg -> dl://{dataset}/a/000.jpg",
        "would store 1 entry (4 B), skip 0 that are already stored",
    ]
    dlcmd("info", f"dl://{dataset}", exit_code=EXIT_NOT_FOUND)


def test_standard_input_and_large_members(dlcmd: Dlcmd, dataset: str) -> None:
    members = {"small": b"1", "large": os.urandom(1 << 20), "last": b"2", "exact": os.urandom(256 << 10)}
    words = ("import", "--chunk-size", "256K", "-", f"dl://{dataset}")
    dlcmd(*words, stdin=tar_of(members))
    assert stored(dlcmd, dataset) == members
    assert dlcmd(*words, "--json", stdin=tar_of(members)).summary["skipped"] == 4


def test_an_interrupted_import_continues(dlcmd: Dlcmd, dataset: str) -> None:
    members = {**CONTENT, "large": os.urandom(1 << 20)}
    (dlcmd.folder / "a.tar").write_bytes(tar_of(members))
    words = ("import", "--chunk-size", "16K", "a.tar", f"dl://{dataset}")
    ran = dlcmd.struck(signal.SIGINT, 0, PUT_CHUNK, 3, *words)
    assert ran.returncode == EXIT_INTERRUPTED
    assert ran.stderr.endswith("dlcmd: interrupted; the same command, run again, continues\n")
    summary = dlcmd(*words, "--json").summary
    assert summary["failed"] == 0 and 0 < summary["skipped"] < len(members)
    assert stored(dlcmd, dataset) == members


def test_a_large_member_continues_at_its_first_missing_extent(dlcmd: Dlcmd, dataset: str) -> None:
    members = {"large": os.urandom(1 << 20)}
    (dlcmd.folder / "a.tar").write_bytes(tar_of(members))
    words = ("import", "-j", "1", "--chunk-size", "64K", "a.tar", f"dl://{dataset}", "--json")
    dlcmd.struck(signal.SIGINT, 0, PUT_CHUNK, 4, *words)
    assert dlcmd(*words).summary["stored_bytes"] <= (1 << 20) - 4 * (64 << 10)
    assert stored(dlcmd, dataset) == members


def test_unsafe_names_and_duplicates(dlcmd: Dlcmd, dataset: str) -> None:
    names = ["../up", "/abs", ".dieselfs/x", "a.jpg", "b", "b/c"]
    (dlcmd.folder / "a.tar").write_bytes(tar_of({name: name.encode() for name in names}))
    (dlcmd.folder / "b.tar").write_bytes(tar_of({"a.jpg": b"other"}))
    words = ("import", "a.tar", "b.tar", f"dl://{dataset}")
    ran = dlcmd(*words, exit_code=EXIT_PARTIAL)
    assert "dlcmd: a.tar: ../up: path has a part '..'; --rename replaces what is not allowed" in ran.stderr
    assert "dlcmd: b.tar: a.jpg: a.jpg is also another file of this import; --rename or --name" in ran.stderr
    assert "4 failed" in ran.text
    assert stored(dlcmd, dataset) == {"abs": b"/abs", "a.jpg": b"a.jpg", "b": b"b"}
    ran = dlcmd(*words, "--rename", exit_code=EXIT_PARTIAL)  # b stays a file
    assert stored(dlcmd, dataset) == {
        "__/up": b"../up",
        "abs": b"/abs",
        "_dieselfs/x": b".dieselfs/x",
        "a.jpg": b"a.jpg",
        "a~2.jpg": b"other",
        "b": b"b",
    }
    assert "b/c would be in b, which is a file of this import" in ran.stderr


def test_a_damaged_source_is_stored_up_to_the_damage(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "cut.tar").write_bytes(tar_of(CONTENT)[:50_000])
    (dlcmd.folder / "whole.tar").write_bytes(tar_of({"whole": b"whole"}))
    ran = dlcmd("import", "cut.tar", "whole.tar", f"dl://{dataset}", exit_code=EXIT_DAMAGED)
    assert "dlcmd: cut.tar" in ran.stderr and "2 failed" in ran.text
    found = stored(dlcmd, dataset)
    assert found.pop("whole") == b"whole"
    assert 10 < len(found) < len(CONTENT) and found.items() <= CONTENT.items()


def test_requests_that_are_refused(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "a.tar").write_bytes(tar_of({"a": b""}))
    (dlcmd.folder / "text").write_text("text " * 200)
    (dlcmd.folder / "folder").mkdir()
    place = f"dl://{dataset}"
    for words, code, message in [
        (
            ["text", place],
            EXIT_USAGE,
            "text: the format is not recognized by its first bytes; name it: --format tar|",
        ),
        (["folder", place], EXIT_USAGE, "(plain folders: dlcmd put -r)"),
        (["a.tar", "none.tar", place], EXIT_NOT_FOUND, "none.tar: No such file or directory"),
        (["a.tar"], EXIT_USAGE, "name sources and a destination: dlcmd import SOURCE... dl://DATASET/"),
        ([place], EXIT_USAGE, "name sources and a destination"),
        (["-", "-", place], EXIT_USAGE, "one source only"),
        (["--name", "{x", "a.tar", place], EXIT_USAGE, "--name {x: expected '}'"),
        (["--chunk-size", "0", "a.tar", place], EXIT_USAGE, "--chunk-size"),
        (["a.tar", place + "@v1"], EXIT_USAGE, "the content of a tag cannot be changed"),
    ]:
        ran = dlcmd("import", *words, exit_code=code)
        assert message in ran.stderr
    dlcmd("info", place, exit_code=EXIT_NOT_FOUND)
    dlcmd("import", "a.tar", place)
    ran = dlcmd("import", "a.tar", f"{place}/a", exit_code=EXIT_USAGE)
    assert "not a folder, but a file" in ran.stderr


def test_urls(dlcmd: Dlcmd, dataset: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("in/a.txt", b"zip")
    with web_file(tar_of(CONTENT), "a.tar") as file, web_file(packed.getvalue(), "b.zip") as other:
        file.sends = [50_000]
        dlcmd("import", file.url, other.url, f"dl://{dataset}")
        assert stored(dlcmd, dataset) == {**CONTENT, "in/a.txt": b"zip"}
        assert file.ranges == [None, "bytes=50000-"]
        summary = dlcmd("import", "--json", file.url, other.url, f"dl://{dataset}").summary
        assert (summary["stored"], summary["skipped"]) == (0, 41)
        file.statuses = [404]
        ran = dlcmd("import", file.url, other.url, f"dl://{dataset}", exit_code=EXIT_PARTIAL)
        assert ran.stderr == f"dlcmd: {file.url}: 404 Not Found\n"


def test_shards_of_the_webdataset_writer(dlcmd: Dlcmd, dataset: str) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the extra 'bench' is not installed")
    with webdataset.TarWriter(str(dlcmd.folder / "shard.tar")) as writer:
        for number in range(3):
            writer.write({"__key__": f"{number:06}", "jpg": bytes([number]) * 1000, "cls": str(number)})
    dlcmd("import", "shard.tar", f"dl://{dataset}")
    expected = {f"{number:06}.jpg": bytes([number]) * 1000 for number in range(3)}
    expected |= {f"{number:06}.cls": str(number).encode() for number in range(3)}
    assert stored(dlcmd, dataset) == expected


def test_links_of_archives(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "f").write_bytes(b"content")
    os.link(tmp_path / "tree" / "f", tmp_path / "tree" / "sub" / "hard")
    (tmp_path / "tree" / "sub" / "soft").symlink_to("../f")
    with tarfile.open(dlcmd.folder / "a.tar", "w") as archive:
        for name in ("f", "sub", "sub/hard", "sub/soft"):
            archive.add(tmp_path / "tree" / name, name, recursive=False)
    dlcmd("import", "a.tar", f"dl://{dataset}")
    for name in ("f", "sub/hard", "sub/soft"):
        assert dlcmd("cat", f"dl://{dataset}/{name}").stdout == b"content"
    assert dlcmd("import", "--json", "a.tar", f"dl://{dataset}").summary["stored"] == 0
