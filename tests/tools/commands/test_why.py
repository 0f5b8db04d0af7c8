"""`dlcmd why` without a mount, and with two; over one that is read it is tried in tests/end_to_end/test_metrics.py."""

import os
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_a_folder_without_a_mount_is_named(dlcmd: Dlcmd) -> None:
    said = dlcmd("why", dlcmd.folder, "--since-start", exit_code=EXIT_NOT_FOUND).stderr
    assert str(dlcmd.folder) in said and "dlcmd mounts" in said
    dlcmd("why", dlcmd.folder, "--for", "0s", exit_code=EXIT_USAGE)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_a_mount_that_is_gone_but_read_to_the_end_is_not_the_one_that_is_meant(
    dlcmd: Dlcmd, pets: str, tmp_path: Path
) -> None:
    """Its daemon lives as long as a file of it is open, and has the same labels."""
    place = tmp_path / "mounted"
    place.mkdir()

    def daemon() -> int:
        (mount,) = (each for each in dlcmd("mounts", "--json").objects if each["mountpoint"] == str(place))
        return int(mount["daemon"])

    dlcmd("mount", f"dl://{pets}", str(place))
    try:
        earlier = daemon()
        with open(place / "train/cat.txt", "rb"):
            dlcmd("umount", "--lazy", str(place))
            dlcmd("mount", f"dl://{pets}", str(place))
            assert daemon() != earlier
            (found,) = dlcmd("why", str(place), "--since-start", "--json").objects
            assert found["activity"]["process"] == daemon()
            shown = dlcmd("top", "--once", "--json", "--interval", "0.1s").objects
            here = {
                each["process"]: each["is_unmounted"]
                for each in shown
                if each["about"].get("mountpoint") == str(place)
            }
            assert here == {earlier: True, daemon(): False}
            families = text_string_to_metric_families(dlcmd("metrics").text)
            counts = Counter(
                (each.name, *sorted(each.labels.items())) for one in families for each in one.samples
            )
            assert counts and set(counts.values()) == {1}
    finally:
        dlcmd("umount", str(place))
