"""dlcmd repack: the same files, a group of one chunk with all classes, and readers that are not disturbed."""

import os
import signal
from collections import Counter

import pytest

import dieselfs
from dieselfs.errors import EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from tests.support.dlcmd import Dlcmd

CLASSES, FILES, FILE_BYTES = 3, 84, 50_000


@pytest.fixture
def sorted_by_class(dlcmd: Dlcmd) -> None:
    for each in range(CLASSES):
        folder = dlcmd.folder / f"tree/train/c{each}"
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number:02}").write_bytes(os.urandom(FILE_BYTES))
    (dlcmd.folder / "tree/train/readme").symlink_to("c0/00")


def digest(dlcmd: Dlcmd, place: str) -> object:
    return dlcmd("verify", "--json", place).objects[0]["digest"]


CLASS = ("--class-of", "^train/([^/]+)/")


@pytest.mark.usefixtures("sorted_by_class")
def test_small_groups_have_all_classes_and_readers_are_not_disturbed(dlcmd: Dlcmd, dataset: str) -> None:
    place = f"dl://{dataset}"
    dlcmd("put", "-r", "tree/", f"{place}/")
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as older:
        header = older.snapshot.header
        older.client.pin(dataset, "node-7 12 /mnt/x", header.generation, header.updated_ns, lease_s=600)
        assert most_of_a_class(older) > 60
        dlcmd("repack", *CLASS, place)
        with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as newer:
            assert newer.generation > older.generation
            assert most_of_a_class(newer) <= 30  # of 84 files in a chunk, 28 are its part
            newer.purge(grace_s=0)
            for path in list(older.shuffle(seed=1, group_chunks=1))[:: FILES // 4]:
                assert older.get(path) == (dlcmd.folder / "tree" / path).read_bytes()


def most_of_a_class(data: dieselfs.Dataset) -> int:
    """In any chunk, which is a group of one chunk."""
    snapshot = data.snapshot
    nodes = [node for node in snapshot.walk() if snapshot.stat(node).is_file]
    counts = Counter((snapshot.extents(node)[0].chunk, snapshot.parent(node)) for node in nodes)
    return max(counts.values())


@pytest.mark.usefixtures("sorted_by_class")
@pytest.mark.parametrize("options", [(), ("--encrypt",)], ids=["plain", "encrypted"])
def test_the_tree_stays_also_of_what_only_readers_can_decrypt(
    dlcmd: Dlcmd, dataset: str, options: tuple[str, ...]
) -> None:
    place, repack = f"dl://{dataset}", ("repack", *CLASS, f"dl://{dataset}")
    dlcmd("put", "-r", *options, "tree/", f"{place}/")
    local = digest(dlcmd, "tree")
    planned = dlcmd(*repack, "-n", "--json").summary
    assert planned["files"] == CLASSES * FILES and planned["needed_bytes"] > CLASSES * FILES * FILE_BYTES
    ran = dlcmd(*repack)
    assert ran.text.startswith(f"copied {CLASSES * FILES} files of ") and "until a purge" in ran.stderr
    assert digest(dlcmd, place) == local
    dlcmd("fsck", "--deep", place)
    dlcmd("rebuild", place)
    assert digest(dlcmd, place) == local
    again = dlcmd(*repack, "--json").summary
    assert (again["rewritten_chunks"], again["files"]) == (0, 0)


def test_a_quota_and_a_user_may_stop_it(admin: Dlcmd) -> None:
    """Nothing is lost, a line says what to do, and the same command continues."""
    for number in range(60):
        path = admin.folder / f"tree/c{number // 20}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(20_000))
    admin("put", "-r", "--chunk-size", "256K", "tree/", "dl://d/")
    before, command = digest(admin, "dl://d"), ("repack", "--chunk-size", "256K", "dl://d")
    stopped = admin.struck(signal.SIGINT, 0, "dieselfs.rpc.client:ServerClient.repack", 1, *command)
    assert stopped.returncode == EXIT_INTERRUPTED
    assert stopped.stderr.splitlines()[-1].startswith("dlcmd: interrupted; the same command, run again")
    admin("quota", "set", "dl://d", "--size", "1600K")
    refused = admin.forked(command)
    assert refused.exit_code == EXIT_PARTIAL
    assert "over quota: dataset d has " in refused.stderr.splitlines()[-1]
    assert "dlcmd quota set dl://d --size" in refused.stderr.splitlines()[-1]
    assert digest(admin, "dl://d") == before
    admin("quota", "set", "dl://d", "--size", "10M")
    assert 0 < admin(*command, "--json").summary["files"] < 60
    assert digest(admin, "dl://d") == before
    assert admin(*command, "--json").summary["files"] == 0


def test_lengths_and_listed_strata(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "tree").mkdir()
    for number in range(100):  # long files first, then short ones
        (dlcmd.folder / f"tree/{number:03}").write_bytes(os.urandom(150_000 if number < 50 else 20_000))
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    rows = [f"{number:03}\t{'long' if number < 50 else 'short'}\n" for number in range(100)]
    (dlcmd.folder / "strata.tsv").write_text("".join(rows))
    by_length = dlcmd("repack", "-n", "--json", "--stratify", "length", f"dl://{dataset}").summary
    listed = dlcmd("repack", "--json", "--strata", "strata.tsv", f"dl://{dataset}").summary
    assert by_length["files"] > 90 and listed["files"] > 90  # not the last chunk, which has two files
    assert dlcmd("repack", "-n", "--json", "--strata", "strata.tsv", f"dl://{dataset}").summary["files"] == 0


def test_a_column_and_the_library(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "tree").mkdir()
    for number in range(84):
        (dlcmd.folder / f"tree/{number:03}.wav").write_bytes(os.urandom(150_000))
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    rows = [f"{number:03}.wav,{'de' if number < 42 else 'en'}\n" for number in range(84)]
    (dlcmd.folder / "languages.csv").write_text("file,language\n" + "".join(rows))
    place = f"dl://{dataset}"
    failed = dlcmd("repack", "--column", "language", place, exit_code=EXIT_NOT_FOUND)
    assert failed.stderr.count("\n") == 1
    dlcmd("columns", "add", place, "languages.csv", "--key", "file")
    failed = dlcmd("repack", "--column", "langage", place, exit_code=EXIT_USAGE)
    assert "there is no column 'langage': did you mean language?" in failed.stderr
    planned = dlcmd("repack", "-n", "--json", "--column", "language", place).summary
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as data:
        found = [
            data.repack("column", column="language", is_dry_run=dry).files for dry in (True, False, False)
        ]
        assert found == [planned["files"], planned["files"], 0] and planned["files"] > 50
        places = [
            (data.snapshot.extents(node)[0].chunk, node)
            for node in range(len(data.snapshot))
            if data.snapshot.stat(node).is_file
        ]
        first = [data.snapshot.path(node) for chunk, node in places if chunk == places[0][0]]
        assert 0.3 < sum(path < b"042" for path in first) / len(first) < 0.7


def test_what_cannot_be_is_said_in_a_line(dlcmd: Dlcmd, pets: str) -> None:
    place, strata = f"dl://{pets}", dlcmd.folder / "strata.tsv"
    (dlcmd.folder / "no-tab").write_text("none 1\n")
    strata.write_text("none\t1\nsome\t1\n")
    for options, fault in (
        (("--class-of", "("), "'(' is no regular expression"),
        (("--class-of", "^val/"), f"'^val/' matches no path of {pets}"),
        (("--stratify", "length", "--class-of", "x"), "--class-of is for --stratify class"),
        (("--stratify", "class", "--strata", "strata.tsv"), "leave out --stratify, --class-of and --column"),
        (("--stratify", "column"), "--stratify column needs --column NAME"),
        (("--stratify", "length", "--column", "x"), "--column is for --stratify column"),
        (("--strata", "no-tab"), "no-tab: line 1: no tab between path and stratum"),
        (("--strata", "strata.tsv"), "strata.tsv: line 2: there is no some"),
    ):
        failed = dlcmd("repack", *options, place, exit_code=EXIT_USAGE)
        assert fault in failed.stderr and failed.stderr.count("\n") == 1
    dlcmd("repack", "dl://no-such-dataset", exit_code=EXIT_NOT_FOUND)
    failed = dlcmd("repack", "--strata", "missing", place, exit_code=EXIT_NOT_FOUND)
    assert "missing: No such file or directory" in failed.stderr
    assert dlcmd("repack", place).text.startswith("copied 0 files of 0 chunks into 0 chunks")
