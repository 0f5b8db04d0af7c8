"""What is read of the disk of a folder, and the file with its setting."""

from pathlib import Path

from dieselfs.limits import KIB
from dieselfs_server.store.disk_reads import disk_reads
from tests.support.block_device import devices_of


def test_a_partition_has_the_read_ahead_of_its_disk(tmp_path: Path) -> None:
    devices = devices_of(tmp_path, tmp_path / "sys", 128, 1280)
    assert disk_reads(str(tmp_path), devices) == (
        tmp_path / "sys/disk/queue/read_ahead_kb",
        128 * KIB,
        1280 * KIB,
    )


def test_a_folder_without_a_disk(tmp_path: Path) -> None:
    assert disk_reads("/proc") is None
    assert disk_reads(str(tmp_path / "missing")) is None
    devices = devices_of(tmp_path, tmp_path / "sys", 128, 1280)
    (devices / "disk/queue/max_sectors_kb").write_text("many")
    assert disk_reads(str(tmp_path), devices) is None
