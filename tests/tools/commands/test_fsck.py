"""dlcmd fsck: clean, repaired, or damaged."""

import os

from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND
from tests.support.dlcmd import Dlcmd


def test_a_healthy_dataset_is_clean(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("fsck", f"dl://{pets}").text.rstrip().endswith("clean")
    deep = dlcmd("fsck", "--deep", "--json", f"dl://{pets}").summary
    assert (deep["problems"], deep["unmended"], deep["deep"]) == (0, 0, True)


def test_a_damaged_chunk_is_named_with_its_files(dlcmd: Dlcmd, pets: str) -> None:
    dataset_id = dlcmd("info", "--json", f"dl://{pets}").objects[0]["dataset_id"]
    (chunk,) = (path for path in (dlcmd.home / "chunks" / dataset_id).glob("???/??/*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.chmod(0o600)
    chunk.write_bytes(content)
    found = dlcmd("fsck", "--deep", "--json", f"dl://{pets}", exit_code=EXIT_DAMAGED)
    assert any(problem["kind"] == "chunk" and chunk.name in problem["what"] for problem in found.objects)
    assert found.summary["unmended"] == found.summary["problems"] > 0


def test_a_dataset_that_is_not_there_cannot_be_checked(dlcmd: Dlcmd) -> None:
    dlcmd("fsck", "dl://no-such-dataset", exit_code=EXIT_NOT_FOUND)


def test_a_damaged_dataset_among_all_is_named(dlcmd: Dlcmd, pets: str) -> None:
    dataset_id = dlcmd("info", "--json", f"dl://{pets}").objects[0]["dataset_id"]
    (chunk,) = (path for path in (dlcmd.home / "chunks" / dataset_id).glob("???/??/*") if path.is_file())
    (dlcmd.folder / "f").write_bytes(b"sound")
    dlcmd("put", "f", "dl://zoo/")
    os.truncate(chunk, chunk.stat().st_size - 1)
    found = dlcmd("fsck", "--all", "--json", exit_code=EXIT_DAMAGED)
    problems = {line["dataset"]: line["problems"] for line in found.objects if line["type"] == "dataset"}
    failed = {line["path"] for line in found.objects if line["type"] == "failure"}
    assert problems[pets] > 0 and problems["zoo"] == 0
    # Tests before this one may have left datasets whose metadata is lost, which fail.
    assert (found.summary["datasets"], found.summary["exit_code"]) == (
        len(problems) + len(failed),
        EXIT_DAMAGED,
    )
