"""A file of 300 MB, uploaded, mounted, and compared by a program that knows nothing of dieselfs; and one of tokens."""

import json
import os
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.torch import ChunkShuffleBatchSampler, TokenDataset
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


TOKENS, LENGTH, BATCH = 64 * MIB, 8192, 32
"""Of two bytes each: half an epoch reads more than the mount can keep."""


def test_tokens_of_a_file_that_is_larger_than_memory(tmp_path: Path) -> None:
    """Each sample is right, and few of them ask the daemon."""
    content = np.random.default_rng(1).integers(0, 1 << 16, TOKENS, np.uint16)
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    with running_server(tmp_path / "server") as server:
        with Dataset(server.settings(), "tokens", must_exist=False) as data:
            data.create()
            data.put("train.u16", content.tobytes())
        options = MountOptions(server=server.unix, memory_bytes=112 * MIB, log_file=str(tmp_path / "log"))
        control.mount("tokens", mountpoint, options)
        try:
            dataset = TokenDataset(mountpoint / "train.u16", LENGTH, dtype="uint16")
            sampler = ChunkShuffleBatchSampler(dataset, BATCH, seed=1, rank=0, world=1)
            steps = len(sampler) // 2
            for indices in islice(sampler, steps):
                for index, sample in zip(indices, dataset.__getitems__(indices), strict=True):
                    assert np.array_equal(sample, content[index * LENGTH : (index + 1) * LENGTH])
            stats = json.loads((mountpoint / ".dieselfs/stats").read_bytes())
            dataset.close()
        finally:
            control.unmount(mountpoint)
    assert stats["fuse"]["requests"]["READ"] < steps * BATCH // 4
    assert stats["fetches"]["chunk_bytes"] <= 2 * TOKENS
