"""dlcmd shuffle: the order of the library, whole and dealt out, as text, bytes and JSON; and how random it is."""

import os
from collections.abc import Iterator

import pytest

import dieselfs
from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from tests.support.dlcmd import Dlcmd

FILES = 51


@pytest.fixture
def many(dlcmd: Dlcmd, dataset: str) -> str:
    """A dataset with 51 files in two folders; one has a strange name."""
    root = os.path.join(os.fsencode(dlcmd.folder), b"many")
    for folder in (b"train", b"val"):
        os.makedirs(os.path.join(root, folder))
    for name in (
        *(b"train/%d" % number for number in range(FILES - 11)),
        *(b"val/%d" % n for n in range(10)),
    ):
        with open(os.path.join(root, name), "wb") as file:
            file.write(name)
    with open(os.path.join(root, b"val/\xff\nodd"), "wb"):
        pass
    dlcmd("put", "-rq", "many/", f"dl://{dataset}/")
    return dataset


@pytest.fixture
def data(dlcmd: Dlcmd, many: str) -> Iterator[Dataset]:
    with dieselfs.connect(many, server=EMBEDDED, home=dlcmd.home) as data:
        yield data


def test_the_order_is_that_of_the_library(dlcmd: Dlcmd, data: Dataset) -> None:
    orders = {epoch: list(map(os.fsencode, data.shuffle(7, epoch, 2))) for epoch in (0, 1)}
    assert orders[0] != orders[1]
    shuffle = ("shuffle", data.name, "--seed", "7", "--group", "2")
    for epoch, order in orders.items():
        exact = dlcmd(*shuffle, "--epoch", str(epoch), "-0").stdout
        assert exact == b"".join(name + b"\0" for name in order)
    text = dlcmd(*shuffle).lines
    assert "val/\\xff\\nodd" in text and len(text) == FILES
    ran = dlcmd(*shuffle, "--json")
    assert [one["path"] for one in ran.objects if "path_bytes" not in one] == [
        name.decode() for name in orders[0] if b"\xff" not in name
    ]
    assert [one["position"] for one in ran.objects] == list(range(FILES))
    dlcmd(*shuffle, "--json", "-0", exit_code=EXIT_USAGE)
    dlcmd("shuffle", data.name, "--seed", "-1", exit_code=EXIT_USAGE)


def test_readers_read_the_whole_between_them(dlcmd: Dlcmd, data: Dataset) -> None:
    plan = data.plan(1, 2)
    shuffle = ("shuffle", f"dl://{data.name}", "--seed", "1", "--epoch", "2", "--json", "--batch", "8")
    positions: list[int] = []
    for rank in range(3):
        ran = dlcmd(*shuffle, "--rank", str(rank), "--world", "3", "--start", "10")
        share = plan.share(rank, 3, 8, 10)
        assert [one["position"] for one in ran.objects] == share.positions().tolist()
        assert ran.summary["files"] == len(share) and ran.summary["start"] == 10
        positions += share.positions().tolist()
    assert sorted(positions) == list(range(10, FILES))
    assert dlcmd(*shuffle, "--drop-last").summary["files"] == FILES - FILES % 8


def test_a_cursor_and_skipped_steps(dlcmd: Dlcmd, data: Dataset) -> None:
    plan = data.plan(1, 2, 5, [range(8, 16)])
    cursor = str(plan.cursor(10))
    ran = dlcmd("shuffle", data.name, "--cursor", cursor, "--json")
    assert ran.summary["cursor"] == cursor and ran.summary["skipped"] == 8
    same = ("--seed", "1", "--epoch", "2", "--group", "5", "--batch", "8", "--skip", "2:1", "--skip", "3:0")
    assert dlcmd("shuffle", data.name, *same, "--start", "10", "--json").objects == ran.objects
    more = dlcmd("shuffle", data.name, "--cursor", cursor, "--batch", "8", "--skip", "2:5-99", "--json")
    assert more.objects == ran.objects[: 40 - 18]
    behind = dlcmd("shuffle", data.name, "--cursor", cursor, "--skip", "2:0-1", exit_code=EXIT_USAGE)
    assert "before position 10 of the cursor" in behind.stderr
    for contradiction in (("--seed", "1"), ("--start", "3")):
        dlcmd("shuffle", data.name, "--cursor", cursor, *contradiction, exit_code=EXIT_USAGE)
    assert "not a cursor" in dlcmd("shuffle", data.name, "--cursor", cursor[:-1], exit_code=EXIT_USAGE).stderr


def test_a_folder_has_an_order_of_its_own(dlcmd: Dlcmd, data: Dataset) -> None:
    names = dlcmd("shuffle", f"dl://{data.name}/train").lines
    assert names == list(data.plan(folder="train").share().paths)
    assert len(names) == FILES - 11 and all(name.startswith("train/") for name in names)
    cursor = dlcmd("shuffle", f"dl://{data.name}/train", "--start", "7", "--json").summary["cursor"]
    assert dlcmd("shuffle", f"dl://{data.name}/train", "--cursor", cursor).lines == names[7:]
    assert "is of snapshot" in dlcmd("shuffle", data.name, "--cursor", cursor, exit_code=EXIT_USAGE).stderr
    dlcmd("shuffle", f"dl://{data.name}/test", exit_code=EXIT_NOT_FOUND)
    dlcmd("shuffle", f"dl://{data.name}/train/1", exit_code=EXIT_USAGE)


def test_how_random_it_is(dlcmd: Dlcmd, data: Dataset) -> None:
    shown = dlcmd("shuffle", data.name, "--quality").text
    assert "51 files, 1 groups, groups that grow to about 25 chunks" in shown and "100.0%" in shown
    measured = dlcmd("shuffle", data.name, "--quality", "--json").summary
    assert measured["entropy_ratio"] == 1 and measured["group_bytes_max"] == data.record().total_bytes
    dlcmd("shuffle", data.name, "--quality", "-0", exit_code=EXIT_USAGE)


def test_the_order_that_a_run_has_served(dlcmd: Dlcmd, data: Dataset) -> None:
    with data.batches(5, seed=4, epoch=3, folder="train") as batches:
        nodes = [node for batch in batches for node in batch.nodes]
        log = dlcmd.folder / "served.log"
        log.write_text(str(batches.log))
    names = [os.fsdecode(data.snapshot.path(node)) for node in nodes]
    shuffle = ("shuffle", f"dl://{data.name}/train", "--served", str(log))
    assert dlcmd(*shuffle).lines == names and len(names) == FILES - 11
    assert dlcmd(*shuffle, "-0").stdout == b"".join(name.encode() + b"\0" for name in names)
    measured = dlcmd(*shuffle, "--quality", "--json").summary
    assert measured["files"] == len(names) and measured["seed"] == 4 and measured["epoch"] == 3
    assert 0 < measured["entropy_ratio"] <= 1 and measured["folder_repeats"] == 1
    assert measured["buffered_bytes_max"] <= data.record().total_bytes
    assert "40 files of rank 0 of 1" in dlcmd(*shuffle, "--quality").text


def test_a_log_of_another_order(dlcmd: Dlcmd, data: Dataset) -> None:
    with data.batches(5, seed=4, folder="train") as batches:
        assert sum(len(batch.nodes) for batch in batches) == FILES - 11
        log = dlcmd.folder / "served.log"
        log.write_text(str(batches.log))
    whole = dlcmd("shuffle", data.name, "--served", str(log), exit_code=EXIT_USAGE).stderr
    assert "the log is of another order" in whole
    shuffle = ("shuffle", f"dl://{data.name}/train", "--served", str(log))
    for doubled in (("--seed", "4"), ("--start", "3"), ("--drop-last",), ("--rank", "0", "--world", "1")):
        assert "--served has the order" in dlcmd(*shuffle, *doubled, exit_code=EXIT_USAGE).stderr
    log.write_text(log.read_text() + "7 0\n")
    assert "truncated or changed" in dlcmd(*shuffle, exit_code=EXIT_USAGE).stderr
    log.write_bytes(b"\xff\n")
    assert "not a log" in dlcmd(*shuffle, exit_code=EXIT_USAGE).stderr
    assert "missing.log" in dlcmd(*shuffle[:2], "--served", "missing.log", exit_code=EXIT_USAGE).stderr
