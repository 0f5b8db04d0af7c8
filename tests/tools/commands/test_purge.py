"""dlcmd purge: the room of what is replaced is won back after the grace time."""

import pytest

import dieselfs
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from tests.support.dlcmd import Dlcmd


@pytest.mark.parametrize(("grace", "removed"), [("0", 1), ("1h", 0)])
def test_a_dead_chunk_goes_after_the_grace_time(dlcmd: Dlcmd, dataset: str, grace: str, removed: int) -> None:
    (dlcmd.folder / "f").write_bytes(bytes(5000))
    for _ in range(2):
        dlcmd("put", "-f", "f", f"dl://{dataset}/")
    purge = ("purge", "--grace", grace, f"dl://{dataset}")
    assert dlcmd(*purge, "-n", "--json").summary["removed_chunks"] == removed
    assert dlcmd(*purge, "-n").text.startswith(f"would have removed {removed} chunk")
    done = dlcmd(*purge, "--json").summary
    assert (done["removed_chunks"], done["waiting_chunks"]) == (removed, 1 - removed)
    assert (done["freed_bytes"] > 5000) == bool(removed)
    assert dlcmd("info", "--json", f"dl://{dataset}").objects[0]["chunks"] == 2 - removed


def test_a_dataset_that_is_not_there_cannot_be_purged(dlcmd: Dlcmd) -> None:
    dlcmd("purge", "dl://no-such-dataset", exit_code=EXIT_NOT_FOUND)


def test_what_holds_chunks_longer_is_named(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "f").write_bytes(bytes(5000))
    dlcmd("put", "-f", "f", f"dl://{dataset}/")
    dlcmd("tag", "add", dataset, "v1")
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as data:
        header = data.snapshot.header
        data.client.pin(dataset, "node-7 12 /mnt/x", header.generation, header.updated_ns, lease_s=600)
    dlcmd("put", "-f", "f", f"dl://{dataset}/")
    ran = dlcmd("purge", "--grace", "0", f"dl://{dataset}")
    assert "held by tag v1, pin of local/node-7 12 /mnt/x" in ran.text
    held = dlcmd("purge", "--grace", "0", "--json", f"dl://{dataset}").summary
    assert (held["removed_chunks"], held["held_by"]) == (0, ["tag v1", "pin of local/node-7 12 /mnt/x"])


def test_all_datasets_are_purged(dlcmd: Dlcmd, dataset: str) -> None:
    """Each is a record, the summary counts them; a dataset and --all are not both possible."""
    (dlcmd.folder / "f").write_bytes(bytes(5000))
    for name in (dataset, f"{dataset}-2"):
        dlcmd("put", "f", f"dl://{name}/")
    ran = dlcmd("purge", "--all", "--json")
    purged = [line["dataset"] for line in ran.objects if line["type"] == "dataset"]
    assert {dataset, f"{dataset}-2"} <= set(purged) and ran.summary["datasets"] == len(purged)
    assert f"dl://{dataset}-2: removed 0 chunks" in dlcmd("purge", "--all").text
    dlcmd("purge", "--all", f"dl://{dataset}", exit_code=EXIT_USAGE)
    dlcmd("purge", exit_code=EXIT_USAGE)
