"""Orders by importance on mounts: their files are in the page cache before they are read, also in less memory."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from dieselfs.cluster.job import Job
from dieselfs.cluster.node_client import job_socket_path
from dieselfs.cluster.secret import read_secret_file
from dieselfs.dataset import Dataset
from dieselfs.encryption.segments import sealed_length
from dieselfs.limits import KIB, MIB
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.samples.sample_store import name_for
from dieselfs.settings.table import FUSE, IMAGE, OVERLAY
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from lab.namespace import wait_for
from lab.network import clear
from tests.support.job_mounts import JOB, job_mounts
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="needs root and /dev/fuse"
)

FILES, FILE_BYTES, CHUNK_BYTES = 2000, 16 * KIB, 512 * KIB
MEMORY_BYTES = 16 * MIB
"""Half of the dataset."""
LARGE_FILES, LARGE_BYTES, SMALL_CHUNK_BYTES = 400, 80 * KIB, 64 * KIB
"""Of an encrypted dataset; each of its files spans two chunks."""
TIMEOUT_S = 60.0


def content_of(path: str) -> bytes:
    size = LARGE_BYTES if path.startswith("large") else FILE_BYTES
    return path.encode().rjust(16, b"-") * (size // 16)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIESELFS_IDENTITY", str(running.settings().home / "identity"))
        for name, part, files, chunk_bytes in (
            ("images", "train", FILES, CHUNK_BYTES),
            ("secret", "large", LARGE_FILES, SMALL_CHUNK_BYTES),
        ):
            folder = tmp_path_factory.mktemp(name)
            (folder / part).mkdir()
            for path in (f"{part}/{number:06d}" for number in range(files)):
                (folder / path).write_bytes(content_of(path))
            with Dataset(running.settings(), name, must_exist=False) as data:
                record = data.create()
                if name == "secret":
                    data.client.encrypt(record)
                upload = TreeUpload(data.client, record, None, jobs=1, chunk_bytes=chunk_bytes)
                walk = partial(walk_source, os.fsencode(folder), b"")
                assert not upload.run(walk).failures
        yield running


def read_epoch(mountpoint: Path, epoch: int, world: int = 1) -> list[str]:
    """The paths in the order in which ranks that take turns read them, whose files have the right bytes."""
    name = f"policy=importance,seed=1,folder=train,epoch={epoch},world={world},batch={10 * world}"
    shares = [
        (mountpoint / f".dieselfs/shuffle/{name},rank={rank}").read_text().splitlines()
        for rank in range(world)
    ]
    paths = [path for step in zip(*shares, strict=True) for path in step]
    for path in paths:
        assert (mountpoint / path).read_bytes() == content_of(path)
    return paths


def stats_of(mountpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((mountpoint / ".dieselfs/stats").read_bytes())
    return found


def daemon_of(mountpoint: Path) -> int:
    (daemon,) = (mount.daemon for mount in control.mounts() if mount.mountpoint == str(mountpoint))
    return daemon or 0


def epochs_of(mountpoint: Path) -> list[tuple[str, int]]:
    """The policy and the epoch of each plan that the mount follows."""
    stats = json.loads((mountpoint / ".dieselfs/stats").read_bytes())
    return [(plan["policy"], plan["epoch"]) for plan in stats["plans"]]


@pytest.mark.parametrize("view", [IMAGE, OVERLAY, FUSE])
def test_an_order_is_read_from_the_page_cache(view: str, server: RunningServer, tmp_path: Path) -> None:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    options = MountOptions(
        server=server.unix,
        view=view,
        memory_bytes=MEMORY_BYTES,
        scores=view == FUSE,
        log_file=str(tmp_path / "log"),
    )
    control.mount("images", mountpoint, options)
    try:
        first = read_epoch(mountpoint, 0)
        assert len(set(first)) == FILES
        with open(mountpoint / ".dieselfs/scores", "w") as scores:
            scores.writelines(f"{FILES - number} {path}\n" for number, path in enumerate(first))
            scores.write("accuracy 0.1\n\n")
        before = stats_of(mountpoint)
        drawn = read_epoch(mountpoint, 1, world=2)
        after = stats_of(mountpoint)
        # Without repetition, an epoch has 63 % of the files.
        assert len(drawn) == FILES and len(set(drawn)) < FILES * 0.6
        kept_files = after["memory"]["used_bytes"]["pinned"] // FILE_BYTES
        reads, found = (after["importance"][name] - before["importance"][name] for name in ("reads", "hits"))
        # Files that plans still hold do not count yet: on a loaded machine, a part of the epoch.
        assert reads > FILES // 4 and found / reads > 2 * kept_files / FILES > 0.1
        pushed, planned, hits = (
            after[part][name] - before[part][name]
            for part, name in (
                ("prefetch", "pushed_files"),
                ("page_cache", "planned_files"),
                ("page_cache", "hits"),
            )
        )
        # A reader that never computes overtakes the prefetcher of a loaded machine, and is found again later.
        assert pushed > FILES // 4 and hits > planned // 2 > 0

        daemon = daemon_of(mountpoint)
        os.kill(daemon, signal.SIGKILL)
        wait_for(lambda: daemon_of(mountpoint) != daemon, "another daemon serves the mount", TIMEOUT_S)
        wait_for(lambda: len(epochs_of(mountpoint)) == 1, "it has resumed the plan", TIMEOUT_S)
        assert read_epoch(mountpoint, 1, world=2) == drawn
        assert epochs_of(mountpoint) == [("importance", 1)]
        assert (mountpoint / ".dieselfs/cursor").read_text() == ""
    finally:
        clear(mountpoint)


def test_mounts_of_a_job_have_one_set_of_scores(server: RunningServer, tmp_path: Path) -> None:
    """Each of three mounts, two of one node, gets a part of the losses; all draw by all of them."""
    with job_mounts(
        server, "images", tmp_path, ["a", "a", "b"], memory_bytes=64 * MIB, scores=True
    ) as mounts:
        orders = [mount / ".dieselfs/shuffle" for mount in mounts]
        name = "policy=importance,seed=1,folder=train,epoch="
        files = [f"train/{number:06d}" for number in range(FILES)]
        (first,) = {(order / f"{name}0").read_text() for order in orders}
        assert sorted(first.splitlines()) == files
        for number, mount in enumerate(mounts):
            with open(mount / ".dieselfs/scores", "w") as scores:
                scores.writelines(
                    f"{loss / FILES} {path}\n" for loss, path in enumerate(files[number :: len(mounts)])
                )
                scores.write("\n")
        wait_for(
            lambda: sum(stats_of(mount)["importance"]["scored_files"] for mount in mounts) == FILES,
            "one mount has all scores",
            TIMEOUT_S,
        )
        (second,) = {(order / f"{name}1").read_text() for order in orders}
        drawn = [int(path.removeprefix("train/")) for path in second.splitlines()]
        assert len(drawn) == FILES > len(set(drawn))
        # The losses that each mount got grow with the number of a file.
        parts = [[number for number in drawn if number % len(mounts) == part] for part in range(len(mounts))]
        assert all(sum(part) > 1.03 * len(part) * FILES / 2 for part in parts)
        for order in orders:
            with pytest.raises(OSError, match="Invalid argument"):
                (order / "policy=importance,seed=2,epoch=0").read_text()


# -- files that the mounts of a job keep together ------------------------------------------------------------

NODES = ["a", "b", "c"]
KEEPING_BYTES = 32 * MIB
"""Of each mount: all of them together keep a tenth of the dataset or so, beside the chunks of the job."""


@pytest.fixture
def keeping(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Three mounts of a job, whose readers have read two epochs and written their losses."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with job_mounts(server, "images", tmp_path, NODES, memory_bytes=KEEPING_BYTES) as mounts:
        for epoch in range(2):
            train(mounts, epoch)
        yield mounts


def train(mounts: list[Path], epoch: int, folder: str = "train") -> None:
    """Read an epoch, and write the losses."""
    for mount, share in zip(mounts, read_together(mounts, shares_of(mounts, epoch, folder)), strict=True):
        with open(mount / ".dieselfs/scores", "w") as scores:
            scores.writelines(f"{int(path[-6:]) / FILES} {path}\n" for path in share)
            scores.write("\n")


def shares_of(mounts: list[Path], epoch: int, folder: str = "train") -> list[list[str]]:
    """The paths that each of the mounts reads."""
    world = len(mounts)
    name = f"policy=importance,seed=1,folder={folder},epoch={epoch},world={world},batch={10 * world}"
    return [
        (mount / f".dieselfs/shuffle/{name},rank={rank}").read_text().splitlines()
        for rank, mount in enumerate(mounts)
    ]


def read_together(mounts: list[Path], shares: list[list[str]]) -> list[list[str]]:
    for step in zip_longest(*shares):
        for mount, path in zip(mounts, step, strict=True):
            assert path is None or (mount / path).read_bytes() == content_of(path)
    return shares


def store_of(mount: Path, node: str, dataset: str = "images") -> Path:
    """Where a mount keeps files for the job."""
    digest = bytes.fromhex(json.loads((mount / ".dieselfs/info").read_text())["digest"])
    fingerprint = read_secret_file(mount.parent / "secret").fingerprint()
    path = job_socket_path(runtime_folder(), dataset, digest, Job(JOB, 0, 1, node), fingerprint)
    return Path("/dev/shm", name_for(f"{path} {fingerprint.hex()}"))


def kept_on(mount: Path, node: str) -> set[int]:
    return {int(each.name) for each in store_of(mount, node).iterdir() if each.name.isdecimal()}


def used_files(mount: Path) -> int:
    used: int = stats_of(mount)["memory"]["used_bytes"]["pinned"]
    return used // FILE_BYTES


def importance_of(mounts: list[Path]) -> Counter[str]:
    return Counter(
        {
            name: sum(stats_of(mount)["importance"][name] for mount in mounts)
            for name in ("reads", "hits", "from_peers")
        }
    )


def test_mounts_of_a_job_keep_each_important_file_once(keeping: list[Path]) -> None:
    before = importance_of(keeping)
    read_together(keeping, shares_of(keeping, 2))
    counted = importance_of(keeping) - before
    wait_for(
        lambda: [*map(len, map(kept_on, keeping, NODES))] == [*map(used_files, keeping)],
        "what the caches want is there",
        TIMEOUT_S,
    )
    kept = [*map(kept_on, keeping, NODES)]
    total = sum(map(len, kept))
    assert len(set.union(*kept)) == total
    limits = [stats_of(mount)["memory"]["allotted_bytes"]["pinned"] // FILE_BYTES for mount in keeping]
    assert [*map(len, kept)] == limits and total > FILES // 20
    # Drawn by score, so more often than at random; two of three are on other nodes.
    assert counted["hits"] / counted["reads"] > total / FILES
    assert counted["hits"] > counted["from_peers"] > counted["hits"] // 2

    daemon = daemon_of(keeping[0])
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: daemon_of(keeping[0]) != daemon, "another daemon serves the mount", TIMEOUT_S)
    read_together(keeping, shares_of(keeping, 3))
    assert used_files(keeping[0]) == limits[0] and len(kept_on(keeping[0], "a") & kept[0]) > limits[0] // 2


@pytest.mark.parametrize("is_killed", [False, True], ids=["it hangs", "it is killed"])
def test_a_lost_mount_is_done_without(is_killed: bool, keeping: list[Path]) -> None:
    """One that hangs takes requests. Then it is back; then it leaves."""
    shares = shares_of(keeping, 2)
    supervision = supervision_of(str(keeping[2]))
    assert supervision is not None
    stopped = supervision.supervisor if is_killed else supervision.daemon  # no supervisor replaces the daemon
    os.kill(stopped, signal.SIGSTOP)
    try:
        if is_killed:
            os.kill(supervision.daemon, signal.SIGKILL)
        read_together(keeping[:2], shares[:2])
        assert sum(stats_of(mount)["peers"]["failures"] for mount in keeping[:2])
    finally:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    read_together(keeping[2:], shares[2:])
    control.unmount(str(keeping[2]))
    rest = keeping[:2]
    wait_for(
        lambda: all(stats_of(mount)["job"]["members"] == NODES[:2] for mount in rest),
        "it has left",
        TIMEOUT_S,
    )
    read_together(rest, shares_of(rest, 3))
    kept = [*map(kept_on, rest, NODES)]
    assert kept[0].isdisjoint(kept[1]) and min(map(len, kept)) > FILES // 60


def test_what_is_kept_of_an_encrypted_dataset_is_encrypted(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also files that span chunks; readers get plain bytes, from this node and from others."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with job_mounts(server, "secret", tmp_path, NODES, memory_bytes=KEEPING_BYTES) as mounts:
        for epoch in range(3):
            before = importance_of(mounts)
            train(mounts, epoch, "large")
        counted = importance_of(mounts) - before
        stores = [store_of(mount, node, "secret") for mount, node in zip(mounts, NODES, strict=True)]
        kept = [path.read_bytes() for store in stores for path in store.iterdir() if path.name.isdecimal()]
        assert kept and {*map(len, kept)} == {sealed_length(LARGE_BYTES)}
        assert not any(b"large/" in content for content in kept)
        assert counted["hits"] > counted["from_peers"] > 0
        # Drawn by score, so more often than at random.
        assert counted["hits"] / counted["reads"] > len(kept) / LARGE_FILES
