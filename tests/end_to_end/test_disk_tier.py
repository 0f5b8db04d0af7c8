"""The disk tier of a node: the second job, mount or program reads nothing from the server."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dieselfs.chunk.frames import Compression
from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE, AccessDenied, InvalidInput
from dieselfs.limits import MIB
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support.dlcmd import Dlcmd, wait_until
from tests.support.job_daemons import end_job_daemons
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import failing_disk, small_disk

CHUNKS = 64
FILES_PER_CHUNK = 4
FILES = CHUNKS * FILES_PER_CHUNK
FILE_BYTES = 100_000
DATASET_BYTES = FILES * FILE_BYTES
SMALL_MEMORY_BYTES = 8 * MIB
"""Of a mount: a third of the dataset."""

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        folder = tmp_path_factory.mktemp("files")
        for number in range(FILES):
            (folder / f"{number}").write_bytes(content(number))
        for name, compression in (("disk", None), ("packed", Compression())):
            with Dataset(server.settings(), name, must_exist=False) as data:
                upload = TreeUpload(
                    data.client,
                    data.create(),
                    None,
                    jobs=1,
                    chunk_bytes=FILES_PER_CHUNK * FILE_BYTES,
                    compression=compression,
                )
                assert not upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed)).failures
        server.user("reader", disk="read", packed="read")
        yield server


def key_file(server: RunningServer) -> str:
    """Over TCP: on one machine, a server passes descriptors of its files and of its memory."""
    return str(server.folder / "reader.key")


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def sent_bytes(server: RunningServer) -> int:
    """What the server has sent of chunks since it started."""
    client = server.client()
    try:
        return int(client.status().metrics["payloads.sent_bytes"])
    finally:
        client.close()


def read_all(place: Path, seed: int = 0) -> None:
    for number in random.Random(seed).sample(range(FILES), FILES):
        assert (place / f"{number}").read_bytes() == content(number)


def is_written(places: Sequence[Path]) -> bool:
    return sum(int(stats_of(place)["disk"]["written_bytes"]) for place in places) >= DATASET_BYTES


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mount"
    place.mkdir()
    yield place
    clear(place)


def mount(server: RunningServer, place: Path, disk: Path, **more: Any) -> None:
    options: dict[str, Any] = {"memory_bytes": SMALL_MEMORY_BYTES, **more}
    log_file = str(place.parent / "mount.log")
    options |= {"server": server.tcp, "key_file": key_file(server), "disk": str(disk), "log_file": log_file}
    control.mount("disk", place, MountOptions(**options))


@needs_fuse
def test_the_second_mount_reads_nothing_from_the_server(
    server: RunningServer, tmp_path: Path, place: Path
) -> None:
    before = sent_bytes(server)
    mount(server, place, tmp_path / "disk", workers=3)
    read_all(place)
    assert stats_of(place)["servers"]["received_bytes"] == DATASET_BYTES
    control.unmount(place)
    between = sent_bytes(server)
    assert between - before <= DATASET_BYTES
    mount(server, place, tmp_path / "disk", workers=3)
    read_all(place, seed=1)
    stats = stats_of(place)
    assert stats["servers"]["received_bytes"] == 0 and stats["disk"]["hit_bytes"] >= DATASET_BYTES
    assert stats["work"]["spent_s"]["disk"] > 0
    assert sent_bytes(server) == between


@needs_fuse
def test_a_disk_that_is_lost_while_it_is_used_costs_no_read(
    server: RunningServer, tmp_path: Path, place: Path
) -> None:
    mount(server, place, tmp_path / "disk", workers=3)
    for number in range(0, FILES, 16):
        assert (place / f"{number}").read_bytes() == content(number)
    (tmp_path / "disk").rename(tmp_path / "gone")
    (tmp_path / "disk").write_bytes(b"no folder")
    read_all(place, seed=1)
    assert stats_of(place)["disk"]["failures"] >= 1
    log = (tmp_path / "mount.log").read_text()
    assert log.count("continuing without the disk") == 1


@needs_fuse
def test_reads_continue_when_the_disk_is_unmounted(
    server: RunningServer, tmp_path: Path, place: Path
) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        mount(server, place, disk)
        for number in range(0, FILES, 16):
            assert (place / f"{number}").read_bytes() == content(number)
        subprocess.run(["umount", "-l", str(disk)], check=True)
        try:
            read_all(place, seed=1)
        finally:
            control.unmount(place)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)  # the end unmounts it


@needs_fuse
def test_reads_continue_when_the_disk_becomes_read_only(
    server: RunningServer, tmp_path: Path, place: Path
) -> None:
    with failing_disk(tmp_path / "disk", 64 * MIB) as make_read_only:
        mount(server, place, tmp_path / "disk")
        for number in range(0, FILES, 16):
            assert (place / f"{number}").read_bytes() == content(number)
        make_read_only()
        read_all(place, seed=1)
        stats = stats_of(place)["disk"]
        control.unmount(place)
    assert stats["failures"] >= 1 and stats["damaged_chunks"] == 0
    assert (tmp_path / "mount.log").read_text().count("continuing without the disk") == 1


@needs_fuse
def test_the_disk_is_listed_and_cleared(server: RunningServer, tmp_path: Path, place: Path) -> None:
    disk = tmp_path / "disk"
    dlcmd = Dlcmd(tmp_path / "home", tmp_path)
    mount(server, place, disk)
    read_all(place)
    wait_until(lambda: is_written([place]))
    listed = dlcmd("cache", "--list", "--disk", disk, "--json")
    (one,) = listed.objects
    assert (one["dataset"], one["bytes"] >= DATASET_BYTES, one["is_in_use"]) == ("disk", True, True)
    assert listed.summary["bytes"] == one["bytes"]
    ran = dlcmd("cache", "--clear", "--disk", disk, "dl://disk", exit_code=EXIT_PARTIAL)
    assert "it is in use" in ran.stderr
    control.unmount(place)
    assert dlcmd("cache", "--list", "--disk", disk).lines[0].startswith(f"dl://disk  {CHUNKS} chunks (")
    dlcmd("cache", "--clear", "-n", "--disk", disk, "disk")
    assert dlcmd("cache", "--clear", "--all", "--disk", disk, "--json").summary["bytes"] == one["bytes"]
    assert dlcmd("cache", "--list", "--disk", disk, "--json").summary["datasets"] == 0
    assert not [path for path in disk.rglob("*") if len(path.name) == 32 and path.is_file()]
    dlcmd("cache", "--clear", "--disk", disk, "disk", exit_code=EXIT_NOT_FOUND)
    for words in (["--list", "x"], ["--clear"], ["--clear", "--all", "x"], []):
        dlcmd("cache", *words, exit_code=EXIT_USAGE)


@needs_fuse
def test_wrong_folders_are_refused_before_anything_is_mounted(
    server: RunningServer, tmp_path: Path, place: Path
) -> None:
    with pytest.raises(InvalidInput, match="a folder of your own on a local disk"):
        mount(server, place, tmp_path / "not" / "there")
    with pytest.raises(InvalidInput, match="--disk-size belongs to a disk"):
        control.mount("disk", place, MountOptions(server=server.unix, disk_size_bytes=MIB))
    (tmp_path / "disk" / "dieselfs-1").mkdir(parents=True, mode=0o755)
    with pytest.raises(AccessDenied, match="0700"):
        mount(server, place, tmp_path / "disk")


def read_job(places: Sequence[Path], seed: int) -> None:
    """One epoch by plan, and reads of all files at random, on all nodes at once."""

    def read(rank: int) -> None:
        name = f"seed={seed},group=8,rank={rank},world={len(places)}"
        for path in (places[rank] / ".dieselfs/shuffle" / name).read_text().splitlines():
            assert (places[rank] / path).read_bytes() == content(int(path))
        read_all(places[rank], seed + rank)

    with ThreadPoolExecutor(len(places)) as threads:
        list(threads.map(read, range(len(places))))


@needs_fuse
@pytest.mark.parametrize(
    ("memory_bytes", "workers"),
    [(SMALL_MEMORY_BYTES, 3), (128 * MIB, 1)],
)
def test_the_second_job_on_the_same_nodes_reads_nothing_from_the_server(
    server: RunningServer, tmp_path: Path, memory_bytes: int, workers: int
) -> None:
    nodes = ["node-0", "node-1"]
    disks = [tmp_path / f"disk-{number}" for number in range(len(nodes))]
    received = []
    for job in range(2):
        folder = tmp_path / f"job-{job}"
        folder.mkdir()
        before = sent_bytes(server)
        more = {"memory_bytes": memory_bytes, "key_file": key_file(server), "workers": workers}
        with job_mounts(server, "disk", folder, nodes, disks, **more) as places:
            read_job(places, job)
            stats = [stats_of(place) for place in places]
            assert [each["requested"]["failed"] for each in stats] == [0, 0]
            if not job:
                wait_until(partial(is_written, places))
            for each in places:
                control.unmount(each)
        received.append(sent_bytes(server) - before)
    assert received[0] >= DATASET_BYTES and received[1] == 0


@needs_fuse
def test_what_a_job_moves_and_keeps_of_compressed_chunks(server: RunningServer, tmp_path: Path) -> None:
    nodes = ["node-0", "node-1"]
    disks = [tmp_path / f"disk-{number}" for number in range(len(nodes))]
    more = {"memory_bytes": SMALL_MEMORY_BYTES, "key_file": key_file(server), "workers": 1}
    before = sent_bytes(server)
    with job_mounts(server, "packed", tmp_path, nodes, disks, **more) as places:
        read_job(places, 0)
        wait_until(lambda: sum(stats_of(place)["disk"]["written_chunks"] for place in places) >= CHUNKS)
        stats = [stats_of(place) for place in places]
        for each in places:
            control.unmount(each)
    files = [file for disk in disks for file in disk.glob("dieselfs-1/*/" + "[0-9a-f]" * 32)]
    kept = sum(file.stat().st_size for file in files)
    assert len(files) >= CHUNKS and kept < len(files) * FILES_PER_CHUNK * FILE_BYTES / 20
    assert 0 < sent_bytes(server) - before < DATASET_BYTES / 10
    # Each node reads each file twice, and owns about half of them. Memory has plain bytes, and peers send these.
    assert sum(each["peers"]["received_bytes"] for each in stats) > DATASET_BYTES / 2
    assert [each["requested"]["failed"] for each in stats] == [0, 0]


_PROGRAM = """
import json, sys
import dieselfs
with dieselfs.connect("disk", memory_bytes=1 << 20, **json.loads(sys.argv[1])) as data:
    for number in range(int(sys.argv[2])):
        assert data.get(f"{number}") == number.to_bytes(4, "little") * (int(sys.argv[3]) // 4)
    print(json.dumps(data.statistics()))
"""


def run_program(server: RunningServer, disk: Path, **connection: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "DIESELFS_SERVER": server.tcp,
        "DIESELFS_KEY_FILE": key_file(server),
        "DIESELFS_DISK": str(disk),
        "DIESELFS_DISK_SIZE": "1GiB",
    }
    words = [json.dumps(connection), str(FILES), str(FILE_BYTES)]
    subprocess.run([sys.executable, "-c", _PROGRAM, *words], env=environment, check=True, timeout=120)


def test_programs_without_a_job_use_the_disk(server: RunningServer, tmp_path: Path) -> None:
    run_program(server, tmp_path / "disk")
    before = sent_bytes(server)
    run_program(server, tmp_path / "disk")
    assert sent_bytes(server) == before


def test_the_daemon_that_programs_of_a_job_start_uses_the_disk(server: RunningServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    try:
        run_program(server, tmp_path / "disk", job="first", job_secret=str(secret))
        files = "dieselfs-1/*/" + "[0-9a-f]" * 32  # the daemon writes them behind its readers
        wait_until(lambda: len([*(tmp_path / "disk").glob(files)]) == CHUNKS)
        before = sent_bytes(server)
        run_program(server, tmp_path / "disk", job="second", job_secret=str(secret))
        assert sent_bytes(server) == before
    finally:
        end_job_daemons(tmp_path / "run")
