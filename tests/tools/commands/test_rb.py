"""dlcmd rb: a dataset is removed when its name is typed, or with -y."""

import os

import pytest

import dieselfs
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from dieselfs.snapshot.pin import holder_name
from dieselfs_client.daemon import control
from dieselfs_tools.cli.private_home import private_home
from tests.support.dlcmd import Dlcmd


def test_for_scripts_with_y(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("rb", "-n", f"dl://{pets}").text == f"would remove dl://{pets} (3 files, 4.0 KiB)\n"
    assert "add -y" in dlcmd("rb", f"dl://{pets}", stdin=pets.encode(), exit_code=EXIT_USAGE).stderr
    dlcmd("info", f"dl://{pets}")
    assert dlcmd("rb", "-y", "--json", pets).summary["files"] == 3
    dlcmd("info", f"dl://{pets}", exit_code=EXIT_NOT_FOUND)


def test_tags_are_named_and_only_removed_on_request(dlcmd: Dlcmd, pets: str) -> None:
    for tag in ("v1", "v2"):
        dlcmd("tag", "add", pets, tag)
    named = f"would remove dl://{pets} (3 files, 4.0 KiB, 2 tags: v1, v2)\n"
    assert dlcmd("rb", "-n", pets).text == named
    ran = dlcmd("rb", "-y", pets, exit_code=EXIT_USAGE)
    assert "has 2 tags (v1, v2)" in ran.stderr and "--with-tags" in ran.stderr
    assert dlcmd("rb", "-y", "--with-tags", "--json", pets).summary["tags"] == ["v1", "v2"]
    dlcmd("info", f"dl://{pets}", exit_code=EXIT_NOT_FOUND)


def test_readers_on_all_machines_are_named(dlcmd: Dlcmd, pets: str) -> None:
    with dieselfs.connect(pets, server=EMBEDDED, home=dlcmd.home) as data:
        header = data.snapshot.header
        for holder in (holder_name("/mnt/here", 1), "other-node 17 /mnt/there", "a reader"):
            data.client.pin(pets, holder, header.generation, header.updated_ns, lease_s=60)
    named = "in use at /mnt/here, local/a reader, other-node:/mnt/there"
    assert dlcmd("rb", "-n", pets).text == f"would remove dl://{pets} (3 files, 4.0 KiB, {named})\n"
    readers = ["/mnt/here", "local/a reader", "other-node:/mnt/there"]
    refused = dlcmd("rb", "-y", pets, exit_code=EXIT_USAGE).stderr
    assert all(reader in refused for reader in readers) and "--in-use" in refused
    dlcmd("info", f"dl://{pets}")
    assert dlcmd("rb", "-y", "--in-use", "--json", pets).summary["readers"] == readers


@pytest.mark.parametrize(("is_right", "exit_code"), [(True, EXIT_OK), (False, EXIT_USAGE)])
def test_the_name_is_to_be_typed(dlcmd: Dlcmd, pets: str, is_right: bool, exit_code: int) -> None:
    ours, theirs = os.openpty()
    try:
        process = dlcmd.start("rb", f"dl://{pets}", stdout=theirs, stderr=theirs, stdin=theirs)
        os.write(ours, (pets if is_right else "pets?").encode() + b"\n")
        assert process.wait(60) == exit_code
    finally:
        os.close(ours)
        os.close(theirs)
    dlcmd("info", f"dl://{pets}", exit_code=EXIT_NOT_FOUND if is_right else EXIT_OK)


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")
def test_a_mount_of_another_store_with_a_dataset_of_this_name_is_no_reader(
    dlcmd: Dlcmd, pets: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = dlcmd.folder / "mount"
    place.mkdir()
    with private_home() as home:
        other = Dlcmd(home, tmp_path_factory.mktemp("other"))
        (other.folder / "cat").write_bytes(b"meow")
        other("put", "-q", "cat", f"dl://{pets}/cat")
        other("mount", "-q", pets, place)
        try:
            assert str(place) in other("rb", "-y", pets, exit_code=EXIT_USAGE).stderr
            assert dlcmd("rb", "-y", "--json", pets).summary["readers"] == []
            assert (place / "cat").read_bytes() == b"meow"
        finally:
            control.unmount(place, lazily=True)
