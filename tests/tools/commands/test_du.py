"""dlcmd du: sums, with folders down to a depth, and what a dataset takes in the store."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_UNAVAILABLE, EXIT_USAGE
from dieselfs_tools.commands.disk_usage import folder_sums
from tests.support.dataset import pack_tree
from tests.support.dlcmd import Dlcmd


def test_a_dataset_a_folder_and_a_file_are_summed(dlcmd: Dlcmd, pets: str) -> None:
    ran = dlcmd("du", "--json", f"dl://{pets}", f"dl://{pets}/train", f"dl://{pets}/train/cat.txt")
    assert [(one["path"], one["bytes"], one["files"]) for one in ran.objects] == [
        ("", 4101, 3),
        ("train", 4101, 2),
        ("train/cat.txt", 5, 1),
    ]
    assert "4101 " in dlcmd("du", "--bytes", f"dl://{pets}").text
    assert dlcmd("du", "-h", f"dl://{pets}").text == dlcmd("du", f"dl://{pets}").text
    assert f"dl://{pets}/" in dlcmd("du").text
    dlcmd("du", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)


def test_what_a_dataset_costs_is_that_of_its_objects(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    place = f"dl://{dataset}"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one").write_text("meow " * 100_000)
    (tmp_path / "texts" / "two").write_bytes(os.urandom(300_000))
    dlcmd("put", "-r", "--compress", "zstd", "texts/", f"{place}/a/")
    ran = dlcmd("du", "--stored", "--json", place)
    (one,) = ran.objects
    assert one["bytes"] == 800_000 and 300_000 < one["object_bytes"] == ran.summary["object_bytes"] < 310_000
    dlcmd("put", "-r", "--dedup", "texts/", f"{place}/b/")
    again = dlcmd("du", "--stored", "--json", place).objects[0]
    assert again["bytes"] == 1_600_000 and 0 < again["object_bytes"] - one["object_bytes"] < 2000
    assert "stored" in dlcmd("du", "--stored", place).text and "stored" not in dlcmd("du", place).text
    refused = dlcmd("du", "--stored", f"{place}/a", exit_code=EXIT_USAGE)
    assert "--stored is for whole datasets" in refused.stderr


def test_a_server_that_does_not_know_what_a_dataset_costs(dlcmd: Dlcmd, pets: str) -> None:
    call_of_another_name = (
        "from dieselfs.rpc import connection; encode = connection.encode_call;"
        "connection.encode_call = lambda *call: encode(*call).replace(b'object_bytes', b'object_bites')"
    )
    ran = dlcmd.forked(["du", "--stored", f"dl://{pets}"], code=call_of_another_name)
    assert ran.exit_code == EXIT_UNAVAILABLE
    assert "perhaps the server is too old for --stored: upgrade it, or leave out --stored" in ran.stderr


@pytest.mark.parametrize("depth_max", [0, 1, 2, 9])
def test_folders_are_listed_to_a_depth_those_below_first(tmp_path: Path, depth_max: int) -> None:
    sizes = {"a/b/c/1": 1, "a/b/2": 20, "a/3": 300, "d/4": 4000, "5": 50000}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "e" / "f").mkdir(parents=True)
    folders = ["", "a", "a/b", "a/b/c", "d", "e", "e/f"]
    expected = {
        folder.encode(): (
            sum(size for name, size in sizes.items() if not folder or name.startswith(folder + "/")),
            sum(1 for name in sizes if not folder or name.startswith(folder + "/")),
        )
        for folder in folders
        if (folder.count("/") + 1 if folder else 0) <= depth_max
    }
    sums = folder_sums(pack_tree(tmp_path).snapshot, b"", depth_max)
    assert sums == expected
    order = list(sums)
    assert all(order.index(path) < order.index(path.rpartition(b"/")[0]) for path in order if path)
