"""dlcmd cp between the servers of two sites: whole chunks, interruptions, hostile bytes; and verbs at a remote."""

import os
import signal
from contextlib import closing

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_UNAVAILABLE, EXIT_USAGE
from dieselfs.settings import Settings
from dieselfs.snapshot.reader import Snapshot
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"
CONFIG = ".config/dieselfs/config.toml"
LIES = """
from dieselfs.sources.server import ServerSource
honest = ServerSource.fetch_chunk
def fetch_chunk(source, chunk):
    payload = honest(source, chunk)
    payload[0] ^= 1
    return payload
ServerSource.fetch_chunk = fetch_chunk
"""
"""The digest of a chunk in the snapshot of a hostile site is that of other bytes than those of its files."""


@pytest.fixture
def site(dlcmd: Dlcmd, server: RunningServer, dataset: str) -> RunningServer:
    """The remote `site1` of `dlcmd`, over TCP with a key: it has a dataset with files of 1 byte to 9 MB."""
    folder = dlcmd.folder / "tree"
    for number in range(40):
        place = folder / f"class {number % 4}" / f"{number}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(1 + 5000 * number))
        os.utime(place, ns=(0, 1_600_000_000_123_456_789 + number))
    (folder / "large").write_bytes(os.urandom(9_000_000))
    (folder / "none").touch(0o600)
    (folder / "empty").mkdir(0o700)
    (folder / "latest").symlink_to("class 0/0.bin")
    there = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.unix})
    there("put", "-rq", "--chunk-size", "1M", "tree/", f"dl://{dataset}/")
    key_file = server.user(dataset[-50:].strip("-"), **{dataset: "read"})
    config = dlcmd.folder / CONFIG
    config.parent.mkdir(parents=True)
    config.write_text(
        f'[remotes.site1]\nserver = "{server.tcp}"\nkey_file = "{key_file}"\n'
        f'[remotes.away]\nserver = "unix:/nowhere"\n'
    )
    return server


def payloads(snapshot: Snapshot) -> set[bytes]:
    return {snapshot.chunk_digest(chunk) for chunk in range(snapshot.chunk_count)}


def test_chunks_are_copied_as_they_are(dlcmd: Dlcmd, site: RunningServer, dataset: str) -> None:
    copy = ("cp", "-r", "--json", f"dl://site1:{dataset}", f"dl://{dataset}")
    assert dlcmd(*copy, "-n").summary["copied"] == 48
    ran = dlcmd(*copy)
    assert (ran.summary["copied"], ran.summary["remote"], ran.summary["skipped"]) == (48, "site1", 0)
    (here,) = ran.objects
    assert here["digest"] == dlcmd("verify", "--json", f"dl://site1:{dataset}").objects[0]["digest"]
    assert dlcmd("ls", "-lR", f"dl://site1:{dataset}/").lines == dlcmd("ls", "-lR", f"dl://{dataset}/").lines
    with closing(Dataset(site.settings(), dataset)) as source:
        wanted = payloads(source.snapshot)
    with closing(Dataset(Settings.load(home=dlcmd.home, environment=dlcmd.environment()), dataset)) as target:
        assert payloads(target.snapshot) >= wanted
    again = dlcmd(*copy).summary
    assert (again["copied"], again["skipped"]) == (0, 48)
    part = dlcmd("cp", "-r", f"dl://site1:{dataset}/class 2", f"dl://{dataset}/new/").text
    assert f"dl://site1:{dataset}/class 2" in part
    assert (
        dlcmd("diff", f"dl://{dataset}/class 2/", f"dl://{dataset}/new/class 2/")
        .lines[0]
        .startswith("no diff")
    )


def test_an_interrupted_copy_continues(dlcmd: Dlcmd, site: RunningServer, dataset: str) -> None:
    copy = ("cp", "-r", "--json", f"dl://site1:{dataset}", f"dl://{dataset}")
    killed = dlcmd.struck(signal.SIGKILL, 0, PUT_CHUNK, 5, *copy)
    assert killed.returncode == -signal.SIGKILL
    before = dlcmd("info", "--json", dataset).objects[0]["chunks"]
    assert before >= 4
    ran = dlcmd(*copy)
    assert ran.summary["copied"] + ran.summary["skipped"] == 48
    assert ran.objects[0]["digest"] == dlcmd("verify", "--json", "tree").objects[0]["digest"]
    with_all = dlcmd("info", "--json", dataset).objects[0]["chunks"]
    assert with_all <= dlcmd("info", "--json", f"dl://site1:{dataset}").objects[0]["chunks"] + 3


def test_an_interrupted_copy_of_a_file_that_was_replaced_has_bytes_of_the_new_one_alone(
    dlcmd: Dlcmd, site: RunningServer, dataset: str
) -> None:
    """Size and time of the two are equal."""
    copy = ("cp", "--json", f"dl://site1:{dataset}/large", f"dl://{dataset}/large")
    dlcmd.struck(signal.SIGKILL, 0, PUT_CHUNK, 5, *copy)
    assert dlcmd("info", "--json", dataset).objects[0]["chunks"] >= 4
    large = dlcmd.folder / "tree/large"
    time_ns = large.stat().st_mtime_ns
    large.write_bytes(content := os.urandom(large.stat().st_size))
    os.utime(large, ns=(0, time_ns))
    there = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": site.unix})
    there("put", "-fq", "--chunk-size", "1M", "tree/large", f"dl://{dataset}/large")
    dlcmd(*copy)
    assert dlcmd("cat", f"dl://{dataset}/large").stdout == content


def test_bytes_that_are_not_those_of_the_files_are_refused(
    dlcmd: Dlcmd, site: RunningServer, dataset: str
) -> None:
    ran = dlcmd.forked(["cp", "-r", f"dl://site1:{dataset}", f"dl://{dataset}"], code=LIES)
    assert ran.exit_code == EXIT_DAMAGED and "have another digest" in ran.stderr


def test_places_that_cannot_be(dlcmd: Dlcmd, site: RunningServer, dataset: str) -> None:
    there = f"dl://site1:{dataset}"
    assert "dlcmd cp" in dlcmd("mv", f"{there}/none", f"dl://{dataset}/none", exit_code=EXIT_USAGE).stderr
    dlcmd("put", "tree/class 0/0.bin", f"dl://{dataset}-own/0.bin")
    both = f"{there}/class 0/0.bin", f"dl://{dataset}-own/0.bin"
    two = dlcmd("cp", *both, f"dl://{dataset}-new/", exit_code=EXIT_USAGE)
    assert "at different sites" in two.stderr
    dlcmd("info", f"dl://{dataset}-new", exit_code=EXIT_NOT_FOUND)
    assert "no remote 'site2'" in dlcmd("ls", "dl://site2:pets", exit_code=EXIT_NOT_FOUND).stderr
    assert "leave out --server" in dlcmd("ls", "--server", "unix:/x", there, exit_code=EXIT_USAGE).stderr
    dlcmd("cp", "-r", "dl://away:pets", "dl://pets", exit_code=EXIT_UNAVAILABLE)
    dlcmd("config", "set", "job", "auto")
    assert (dlcmd.folder / CONFIG).read_text().startswith('job = "auto"\n[remotes.site1]')
    assert dlcmd("cat", f"{there}/class 0/0.bin").stdout == (dlcmd.folder / "tree/class 0/0.bin").read_bytes()
