"""A file of 300 MB, uploaded, mounted, and compared by a program that knows nothing of dieselfs."""

import os
import subprocess
from pathlib import Path

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from tests.support.server import running_server

PIECES = 300
MEMORY_BYTES = 64 * MIB
"""Much less than the file: what was read must make room for what comes."""


def test_a_file_of_three_hundred_megabytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    noise = os.urandom(MIB - 8)
    with (source / "large.h5").open("wb") as file:
        for number in range(PIECES):
            file.write(number.to_bytes(8, "big") + noise)
        file.write(b"the end")
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    with running_server(tmp_path / "server") as server:
        with Dataset(server.settings(), "large", must_exist=False) as data:
            upload = TreeUpload(data.client, data.create(), None)
            report = upload.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
            assert not report.failures
        options = MountOptions(server=server.unix, memory_bytes=MEMORY_BYTES, log_file=str(tmp_path / "log"))
        control.mount("large", mountpoint, options)
        try:
            done = subprocess.run(["diff", "-r", source, mountpoint], capture_output=True, check=False)
            assert (done.returncode, done.stdout) == (0, b"")
            with (mountpoint / "large.h5").open("rb") as file:
                for number in (299, 0, 150, 7):  # anywhere, not only in order
                    file.seek(number * MIB)
                    assert file.read(8) == number.to_bytes(8, "big")
                file.seek(PIECES * MIB)
                assert file.read() == b"the end"
        finally:
            control.unmount(mountpoint)
