import os
from pathlib import Path

from dieselfs_client.mount.points.mount_table import (
    MountRecord,
    is_stale,
    mount_at,
    parse_mountinfo,
    uppermost,
)

MOUNTINFO = rb"""22 27 0:20 / /sys rw,nosuid - sysfs sysfs rw
42 27 0:39 / /mnt/a\040b\134c ro,nosuid,nodev,noatime shared:5 master:1 - fuse.dieselfs image\040net ro,user_id=0
43 42 0:40 / /mnt/a\040b\134c rw - tmpfs none rw,size=1k
"""


def test_a_line_is_a_record() -> None:
    records = list(parse_mountinfo(MOUNTINFO))
    assert len(records) == 3
    assert records[1] == MountRecord(
        "/mnt/a b\\c",
        "image net",
        "fuse.dieselfs",
        "0:39",
        ("ro", "nosuid", "nodev", "noatime", "user_id=0"),
        42,
        27,
    )


def test_a_mount_that_was_moved_beneath_another_is_not_the_uppermost() -> None:
    """Lines come in the order in which the mounts were made; the second one is beneath the first."""
    lines = b"43 45 0:39 / /m ro - erofs dl://x ro\n45 27 0:40 / /m ro - erofs dl://x ro\n"
    above, beneath = parse_mountinfo(lines)
    assert uppermost([above, beneath]) == above == uppermost([above])
    assert uppermost([beneath]) == beneath and uppermost([]) is None


def test_bytes_that_are_not_utf_8_come_as_the_file_system_gives_them() -> None:
    (record,) = parse_mountinfo(b"1 2 0:3 / /\xff rw - tmpfs none rw\n")
    assert os.fsencode(record.mountpoint) == b"/\xff"


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    root = mount_at("/")
    assert root is not None and root.mountpoint == "/"
    assert mount_at(str(tmp_path)) is None


def test_what_answers_is_not_stale(tmp_path: Path) -> None:
    assert not is_stale(str(tmp_path))
    assert not is_stale(str(tmp_path / "missing"))


def test_lines_that_are_none_of_the_kernels_and_sources_with_any_bytes() -> None:
    lines = b"\n".join(
        (
            b"",
            b"36 35 0:32 / /mnt",
            b"36 35 0:32 / /mnt ro - fuse.dieselfs dl://cut",
            b"36 35 0:32 / /mnt\\777 ro - tmpfs with\rreturn rw",
        )
    )
    (record,) = parse_mountinfo(lines)
    assert (record.source, record.mountpoint) == ("with\rreturn", "/mnt\\777")
