"""An upload by several processes stores what an upload by one process stores, and tells the same."""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL
from dieselfs_tools.cli.patterns import ALL
from dieselfs_tools.transfers.trees import NAMES_PER_UNIT, Source, SourceTrees
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer
from tests.support.trees import odd_tree

CHUNK = ("--chunk-size", "64K")
JOBS = ("1", "3")
LARGE_BYTES = 200_000


def random_tree(folder: Path, seed: int) -> None:
    """Folders, also empty ones, links, files from nothing to several chunks; of two seeds, many paths are the same."""
    chosen = random.Random(seed)
    folders = [folder]
    for _ in range(chosen.randint(5, 30)):
        made = chosen.choice(folders) / f"folder-{chosen.randint(0, 9)}"
        made.mkdir(exist_ok=True, parents=True)
        folders.append(made)
    for number in range(chosen.randint(50, 200)):
        place = chosen.choice(folders) / f"file-{chosen.randint(0, 99)}.{chosen.choice(['jpg', 'tmp'])}"
        if chosen.random() < 0.1:
            place.with_suffix(".link").unlink(missing_ok=True)
            place.with_suffix(".link").symlink_to(f"target-{number}")
        place.write_bytes(chosen.randbytes(chosen.choice([0, 1, 100, 30_000, LARGE_BYTES])))
        os.utime(place, ns=(number, number * 10**9 + 1))


def told(dlcmd: Dlcmd, *words: str, exit_code: int = EXIT_OK) -> tuple[dict[str, Any], list[Any]]:
    """What a command counts, and its failures in any order."""
    ran = dlcmd(*words, "--json", exit_code=exit_code)
    kept = ("stored", "stored_bytes", "skipped", "skipped_bytes", "deleted", "failed")
    failures = [line for line in ran.objects if line["type"] == "failure"]
    return {name: ran.summary[name] for name in kept}, sorted(failures, key=str)


def assert_same(dlcmd: Dlcmd, dataset: str, *runs: Sequence[str], exit_code: int = EXIT_OK) -> list[Any]:
    """Run commands with one process and with several, each twice; returns the entries. `DATASET` stands for where."""
    found = []
    for jobs in JOBS:
        name = f"{dataset}-{jobs}"
        counted = []
        for words in runs:
            named = [word.replace("DATASET", name) for word in words]
            counted += [told(dlcmd, *named, "--jobs", jobs, exit_code=exit_code) for _ in range(2)]
        entries = dlcmd("ls", "-lR", "--json", f"dl://{name}/").objects
        dlcmd("get", "-r", "-q", f"dl://{name}/", f"back-{jobs}")
        contents = {
            str(place.relative_to(dlcmd.folder / f"back-{jobs}")): place.read_bytes()
            for place in sorted((dlcmd.folder / f"back-{jobs}").rglob("*"))
            if place.is_file() and not place.is_symlink()
        }
        dlcmd("fsck", f"dl://{name}")
        found.append((counted, entries, contents))
    assert found[1] == found[0]
    return [entry["path"] for entry in found[0][1]]


@pytest.mark.parametrize("seed", range(2))
def test_any_tree_with_filters(dlcmd: Dlcmd, dataset: str, seed: int) -> None:
    random_tree(dlcmd.folder / "tree", seed)
    assert_same(dlcmd, dataset, ["put", "-r", "tree", "--exclude", "*.tmp", "dl://DATASET/", *CHUNK])


def test_encrypted_and_over_tls(dlcmd: Dlcmd, server: RunningServer, dataset: str) -> None:
    key = server.user("workers", **{f"{dataset}-{jobs}": "write" for jobs in JOBS})
    variables = {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(key)}
    random_tree(dlcmd.folder / "tree", 5)
    put = ["put", "-r", "--encrypt", "tree/", "dl://DATASET/", *CHUNK]
    assert_same(Dlcmd(dlcmd.home, dlcmd.folder, variables), dataset, put)


def test_names_that_few_have_and_many_names(dlcmd: Dlcmd, dataset: str) -> None:
    odd_tree(dlcmd.folder / "tree")
    (dlcmd.folder / "tree/many").mkdir()
    for number in range(2 * NAMES_PER_UNIT + 1):
        (dlcmd.folder / f"tree/many/{number}").write_bytes(b"%d" % number)
    paths = assert_same(dlcmd, dataset, ["put", "-r", "tree/", "dl://DATASET/"])
    assert sum(path.startswith("many/") for path in paths) == 2 * NAMES_PER_UNIT + 1


def test_of_a_path_in_several_sources_the_last_one_counts(dlcmd: Dlcmd, dataset: str) -> None:
    for seed in range(3):
        random_tree(dlcmd.folder / f"tree-{seed}", seed)
    sources = [f"tree-{seed}/" for seed in range(3)]
    assert_same(dlcmd, dataset, ["put", "-r", "-f", *sources, "dl://DATASET/", *CHUNK])
    dlcmd("get", "-r", "-q", f"dl://{dataset}-3/", "all")
    for source in sources:
        shutil.copytree(dlcmd.folder / source, dlcmd.folder / "copied", dirs_exist_ok=True, symlinks=True)
    assert dlcmd("check", "copied/", f"dl://{dataset}-3/").lines[0].startswith("no differences")


def test_listed_names_and_failures(dlcmd: Dlcmd, dataset: str) -> None:
    random_tree(dlcmd.folder / "tree", 7)
    (dlcmd.folder / "tree/twice").touch()
    places = [place for place in sorted((dlcmd.folder / "tree").rglob("*")) if not place.is_dir()]
    listed = [str(place.relative_to(dlcmd.folder / "tree")) for place in places[::2]]
    (dlcmd.folder / "names").write_text("\n".join(["twice", *listed, "nothing", "../tree", "twice"]))
    put = ["put", "-r", "--files-from", "names", "tree/", "dl://DATASET/", *CHUNK]
    assert_same(dlcmd, dataset, put, exit_code=EXIT_PARTIAL)


def test_a_mirror(dlcmd: Dlcmd, dataset: str) -> None:
    random_tree(dlcmd.folder / "tree", 1)
    random_tree(dlcmd.folder / "other", 2)
    syncs = [["sync", "--delete", f"{tree}/", "dl://DATASET/", *CHUNK] for tree in ("tree", "other")]
    assert_same(dlcmd, dataset, *syncs)
    assert dlcmd("check", "other/", f"dl://{dataset}-3/").lines[0].startswith("no differences")


def test_a_small_folder_is_one_chunk_and_one_generation(dlcmd: Dlcmd, dataset: str) -> None:
    """More processes would each make a chunk."""
    (dlcmd.folder / "tree").mkdir()
    for number in range(100):
        (dlcmd.folder / f"tree/{number}").write_bytes(b"%d" % number)
    stored = dlcmd("put", "-r", "--jobs", "8", "--json", "tree", f"dl://{dataset}/").summary
    assert (stored["stored"], stored["generation"]) == (101, 1)
    assert dlcmd("fsck", "--json", f"dl://{dataset}").summary["chunks"] == 1


@pytest.mark.parametrize(
    ("paths", "parts"),
    [
        (["a", "b", "c"], [(0, 3)]),
        (["a", "b", "a"], [(0, 2), (2, 3)]),
        (["a", "a/b"], [(0, 1), (1, 2)]),
        (["a/b", "a"], [(0, 1), (1, 2)]),
        (["a/b", "a/c", "ab"], [(0, 3)]),
        (["", "a", "a/b"], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_sources_that_have_paths_in_common_follow_each_other(
    paths: Sequence[str], parts: list[tuple[int, int]]
) -> None:
    sources = [Source(b"here", path.encode(), True) for path in paths]
    assert list(SourceTrees(sources, ALL).disjoint()) == parts
