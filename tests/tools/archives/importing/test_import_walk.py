"""An import by several processes stores and tells what an import by one process does."""

import io
import signal
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_PARTIAL, EXIT_UNAVAILABLE
from dieselfs_tools.archives.importing.reader import Readers
from tests.support.dlcmd import CALLER, Dlcmd
from tests.support.importing import QUIET
from tests.tools.transfers.test_upload_workers import CHUNK, told

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"
MTIME = 1_600_000_000


def write_tar(place: Path, members: Mapping[str, bytes | None], folder_mtime: int = MTIME) -> None:
    """None: a folder."""
    with tarfile.open(place, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.mtime = MTIME
            if content is None:
                member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, folder_mtime
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content or b""))


def write_shards(folder: Path, shards: int) -> list[str]:
    """Archives of 20 files each, whose names differ."""
    names = [f"{shard}.tar" for shard in range(shards)]
    for name in names:
        write_tar(folder / name, {f"{name}/{number}": bytes([number]) * 40_000 for number in range(20)})
    return names


def test_the_first_source_keeps_a_name_and_the_last_one_its_folder(dlcmd: Dlcmd, dataset: str) -> None:
    """The contested contents have one size and time, so only their bytes tell them apart."""
    large = {f"large-{number}": bytes([number]) * 200_000 for number in range(3)}
    sources: list[dict[str, bytes | None]] = [
        {"a": b"0", "large-0": large["large-0"], "folder/x": b"0", "file": b"0", "all/": None},
        {
            "a": b"1",
            "a/": None,
            "large-1": large["large-1"],
            "folder": b"1",
            "file/below/x": b"1",
            "all/": None,
        },
        {
            "a": b"2",
            "large-2": large["large-2"],
            "folder/x": b"2",
            "folder/y": b"2",
            "file/": None,
            "../up": b"2",
        },
        {"all/": None, "folder/": None},
    ]
    names = [f"{number}.tar" for number in range(len(sources))]
    for number, members in enumerate(sources):
        write_tar(dlcmd.folder / names[number], members, MTIME + number)
    with (dlcmd.folder / "2.tar").open("ab") as damaged:
        damaged.write(b"behind the end")
    expected = {"a": b"0", "folder/x": b"0", "folder/y": b"2", "file": b"0", **large}
    found = []
    for jobs, runs in (("1", 1), ("3", 2)):
        where = f"dl://{dataset}-{jobs}/"
        for _ in range(runs):
            counts, failures = told(
                dlcmd, "import", *names, where, "--jobs", jobs, *CHUNK, exit_code=EXIT_DAMAGED
            )
            listed = dlcmd("ls", "-lR", "--json", where).objects
            contents = dlcmd("cat", *(where + path for path in expected)).stdout
            found.append((failures, listed, contents))
            assert counts["stored"] + counts["skipped"] == len(expected) + 2  # folders
            assert counts["failed"] == len(failures) == 9
    assert found[1] == found[0] and found[2] == found[0]
    assert found[0][2] == b"".join(expected.values())


def test_one_process_puts_right_what_a_cut_off_import_has_left(dlcmd: Dlcmd, dataset: str) -> None:
    """The second source was stored first, and the sizes and times of its files are those of the first source."""
    for number in range(2):
        write_tar(dlcmd.folder / f"{number}.tar", {"a": b"%d" % number, f"own-{number}": b""})
    where = f"dl://{dataset}/"
    dlcmd("import", "1.tar", where)
    dlcmd("import", "0.tar", "1.tar", where, "--jobs", "1", exit_code=EXIT_PARTIAL)
    assert dlcmd("cat", f"{where}a").stdout == b"0"


def test_limits_are_those_of_all_sources(dlcmd: Dlcmd, dataset: str) -> None:
    words = (
        "import",
        *write_shards(dlcmd.folder, 3),
        f"dl://{dataset}",
        "--jobs",
        "3",
        "--max-records",
        "59",
    )
    assert ": more than 59 records" in dlcmd(*words, exit_code=EXIT_PARTIAL).stderr


@pytest.fixture(scope="module")
def large_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that several processes read: 130 files, some of whose names are in several parts."""
    path = tmp_path_factory.mktemp("large") / "large.tar"
    content = {f"train/{number:03}": number.to_bytes(2, "little") * 150_000 for number in range(128)}
    members: dict[str, bytes | None] = {"twice": b"0", "mixed/x": b"x", **content}
    write_tar(path, members)
    with tarfile.open(path, "a") as archive:
        for name, kind in (
            ("twice", tarfile.REGTYPE),
            ("train", tarfile.DIRTYPE),
            ("mixed", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.mtime, member.type, member.size = MTIME, kind, int(kind == tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(b"1"))
    with path.open("ab") as damaged:
        damaged.write(b"behind the end")
    return path


def test_one_archive_by_several_processes(dlcmd: Dlcmd, dataset: str, large_tar: Path) -> None:
    with (
        closing(Readers(QUIET)) as readers,
        readers.read(str(large_tar), jobs=2) as listed,
        readers.read(str(large_tar)) as read,
    ):
        assert len([*listed.starts()]) == 2 and sum(1 for _ in zip(read, range(9), strict=False)) == 9
    found: list[list[Any]] = []
    for jobs in ("1", "3"):
        where = f"dl://{dataset}-{jobs}/"
        words = ("import", str(large_tar), where, "--jobs", jobs)
        found.append([told(dlcmd, *words, exit_code=EXIT_DAMAGED) for _ in range(2)])
        found[-1] += [dlcmd("ls", "-lR", "--json", where).objects, dlcmd("cat", f"{where}twice").stdout]
    dlcmd("diff", f"dl://{dataset}-1", f"dl://{dataset}-3")
    assert found[1] == found[0] and found[0][-1] == b"0"
    counts, failures = found[0][0]
    assert (counts["stored"], counts["failed"], len(failures)) == (131, 3, 3)  # with the folder


def test_a_killed_reader_of_a_part_loses_nothing(dlcmd: Dlcmd, dataset: str, large_tar: Path) -> None:
    words = ("import", str(large_tar), f"dl://{dataset}/", "--jobs", "2")
    ran = dlcmd.struck(signal.SIGKILL, CALLER, PUT_CHUNK, 2, *words)
    assert ran.returncode == EXIT_UNAVAILABLE
    summary = dlcmd(*words, "--json", exit_code=EXIT_DAMAGED).summary
    assert summary["skipped"] > 0 and summary["stored"] + summary["skipped"] == 131
    assert dlcmd("cat", f"dl://{dataset}/twice").stdout == b"0"


def test_a_killed_worker_loses_nothing(dlcmd: Dlcmd, dataset: str) -> None:
    words = ("import", *write_shards(dlcmd.folder, 4), f"dl://{dataset}/", "--jobs", "2", *CHUNK)
    ran = dlcmd.struck(signal.SIGKILL, CALLER, PUT_CHUNK, 2, *words)
    assert ran.returncode == EXIT_UNAVAILABLE
    assert ran.stderr.startswith("dlcmd: a process of the upload has ended (SIGKILL); with --jobs 1 ")
    assert ran.stderr.count("\n") == 1
    summary = dlcmd(*words, "--json").summary
    assert summary["skipped"] > 0 and summary["stored"] + summary["skipped"] == 80
    assert dlcmd("cat", f"dl://{dataset}/3.tar/7").stdout == bytes([7]) * 40_000
