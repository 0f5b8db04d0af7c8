"""dlcmd quota: what is limited, and what a refusal says."""

import tarfile

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd

BIG = 300_000


def test_every_way_to_store_obeys_the_quota_of_a_dataset(dlcmd: Dlcmd, admin: Dlcmd) -> None:
    folder = dlcmd.folder / "new"
    folder.mkdir()
    (folder / "big").write_bytes(bytes(BIG))
    with tarfile.open(dlcmd.folder / "a.tar", "w") as archive:
        archive.add(folder / "big", "from-tar")
    (dlcmd.folder / "small").write_text("content")
    admin("put", "small", "dl://pets/")
    admin("put", "-r", "new/", "dl://others/")
    text = admin("quota", "set", "dl://pets", "--size", "100000", "--files", "9").text
    assert text == "dl://pets: at most 97.7 KiB, at most 9 files\n"
    before = admin("ls", "-R", "pets").text
    for command in (
        ("put", "new/big", "dl://pets/"),
        ("put", "-r", "new/", "dl://pets/"),
        ("sync", "new", "dl://pets/new/"),
        ("import", "a.tar", "dl://pets/"),
        ("cp", "dl://others/big", "dl://pets/copy"),
        ("mv", "dl://others/big", "dl://pets/moved"),
        ("attach", "a.tar", "dl://pets/at/"),
    ):
        ran = admin(*command, exit_code=EXIT_PARTIAL)
        assert "over quota: dataset pets has " in ran.stderr, command
        assert "dlcmd quota set dl://pets --size" in ran.stderr, command
    assert admin("ls", "-R", "pets").text == before
    admin("stat", "dl://others/big")  # not moved
    admin("quota", "set", "dl://pets", "--size", "1MB")
    admin("cp", "dl://others/big", "dl://pets/copy")


def test_what_is_no_quota_is_refused(admin: Dlcmd) -> None:
    admin("quota", "set", "nobody-known", "--files", "1", exit_code=EXIT_NOT_FOUND)
    admin("quota", "set", "*", exit_code=EXIT_USAGE)
    admin("quota", "set", "dl://a b", "--files", "1", exit_code=EXIT_USAGE)
    admin("quota", "set", "-n", "*", "--files", "1")
    admin("quota", "owner", "-n", "dl://d", "nobody-known", exit_code=EXIT_NOT_FOUND)
    assert admin("quota", "ls").text == "there are no quotas\n"
