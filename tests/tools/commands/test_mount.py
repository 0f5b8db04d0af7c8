"""dlcmd mount, umount and mounts: there and back again."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE, MountError
from dieselfs.limits import MIB
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import MOUNTINFO, parse_mountinfo
from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, free_port

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


@pytest.fixture
def place(dlcmd: Dlcmd) -> Iterator[Path]:
    """A folder to mount on, free again afterwards."""
    folder = dlcmd.folder / "mount point"
    folder.mkdir()
    yield folder
    with suppress(MountError):
        control.unmount(folder, lazily=True)


def test_a_dataset_is_mounted_listed_read_and_unmounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    assert dlcmd("mount", "-n", pets, place).text == f"would mount dl://{pets} on {place}\n"
    assert os.listdir(place) == []
    ran = dlcmd("mount", pets, place, "--json", "--memory", "64M")
    assert (ran.summary["dataset"], ran.summary["mountpoint"]) == (pets, str(place))
    found = compare_trees(os.fsencode(dlcmd.folder / "pets"), os.fsencode(place), is_mount=True)
    assert (found.files, found.shown) == (3, [])

    (listed,) = (one for one in dlcmd("mounts", "--json").objects if one.get("mountpoint") == str(place))
    assert (listed["dataset"], listed["is_stale"]) == (pets, False)
    assert f"dl://{pets} on {place} (process " in dlcmd("mounts").text
    assert dlcmd("upgrade", "-n", place).text == f"would upgrade {place}\n"
    upgraded = dlcmd("upgrade", place, "--json").objects[0]
    (after,) = (one for one in dlcmd("mounts", "--json").objects if one.get("mountpoint") == str(place))
    assert (after["process"], after["daemon"]) == (listed["process"], upgraded["daemon"])
    assert (after["upgrades"], after["restarts"], after["trouble"]) == (1, 0, "")
    assert after["daemon"] != listed["daemon"]

    assert "mounted there already" in dlcmd("mount", pets, place, exit_code=EXIT_USAGE).stderr
    assert dlcmd("umount", "-n", place).text == f"would unmount {place}\n"
    with open(place / "train" / "cat.txt", "rb") as file:
        busy = dlcmd("umount", place, exit_code=EXIT_USAGE).stderr
        assert busy.startswith(f"dlcmd: {place}: in use by ") and f"({os.getpid()})" in busy
        assert busy.endswith(f"dlcmd umount --lazy '{place}'\n")
        assert file.read() == b"xxxxx"
    assert dlcmd("umount", place).text == f"unmounted {place}\n"
    assert os.listdir(place) == []
    for verb in ("umount", "upgrade"):
        assert "no dataset is mounted there" in dlcmd(verb, place, exit_code=EXIT_NOT_FOUND).stderr
    assert "mkdir -p" in dlcmd("mount", pets, place / "x", exit_code=EXIT_NOT_FOUND).stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount it")
def test_what_is_written_through_a_mount_is_stored_and_listed(
    dlcmd: Dlcmd, dataset: str, place: Path
) -> None:
    writes = dlcmd.folder / "writes"
    dlcmd("mount", "--write", "--write-folder", writes, f"dl://{dataset}/run", place)
    (place / "log").write_bytes(b"step 1\n")
    ran = dlcmd("sync", place, "--json")
    assert (ran.summary["stored"], ran.summary["deleted"], ran.summary["failed"]) == (1, 0, 0)
    assert dlcmd("cat", f"dl://{dataset}/run/log").stdout == b"step 1\n"
    (listed,) = (one for one in dlcmd("mounts", "--json").objects if one.get("mountpoint") == str(place))
    assert str(listed["writes"]).startswith(f"written to {writes}, stored ")
    (place / "log").unlink()
    assert dlcmd("umount", place).text == f"unmounted {place}\n"
    assert dlcmd("ls", f"dl://{dataset}/run").text == ""
    assert not writes.exists()
    assert "neither a mount that can be written" in dlcmd("sync", place, exit_code=EXIT_USAGE).stderr


def test_the_options_of_all_verbs_hold_for_the_mount(
    dlcmd: Dlcmd, pets: str, place: Path, server: RunningServer
) -> None:
    elsewhere = {"DIESELFS_SERVER": f"tcp://127.0.0.1:{free_port()}"}
    Dlcmd(dlcmd.home, dlcmd.folder, elsewhere)("--server", "embedded", "mount", pets, place)
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    dlcmd("umount", place)

    dlcmd("--server", server.unix, "put", "pets/train/cat.txt", "dl://mounted-over-tcp/")
    key = server.user("mounts", **{"mounted-over-tcp": "read"}).rename(dlcmd.folder / "key")
    over_tcp = ("mount", "mounted-over-tcp", place, "--server", server.tcp, "--key-file")
    dlcmd(*over_tcp, "key")
    assert os.listdir(place) == ["cat.txt"]
    dlcmd("umount", place)
    config = dlcmd.folder / ".config" / "dieselfs" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'server = "{server.tcp}"\nkey_file = "~/key"\n')
    dlcmd("mount", "mounted-over-tcp", place)
    assert os.listdir(place) == ["cat.txt"]
    dlcmd("umount", place)
    *name, secret, pin = key.read_text().split()
    key.write_text(" ".join([*name, secret[:-10] + "AAAAAAAAA=", pin]))
    assert dlcmd(*over_tcp, "key", exit_code=EXIT_REFUSED).stderr.startswith("dlcmd: ")


def test_a_mount_takes_part_in_a_job(
    dlcmd: Dlcmd, pets: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(dlcmd.folder))
    secret = dlcmd.folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    ran = dlcmd(
        *("mount", pets, place, "--json", "--job", "train"),
        *("--job-secret", "secret", "-o", "job_node=a,job_rank=3"),
    )
    told = {name: ran.summary[name] for name in ("job", "node", "nodes", "members")}
    assert told == {"job": "train", "node": "a", "nodes": 0, "members": ["a"]}
    job = json.loads((place / ".dieselfs/stats").read_text())["job"]
    assert (job["name"], job["node"], job["members"], job["is_master"]) == ("train", "a", ["a"], True)
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    dlcmd("umount", place)


def test_a_job_that_is_configured_is_the_default(
    dlcmd: Dlcmd, pets: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(dlcmd.folder))
    secret = dlcmd.folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    told = {"JOB": "train", "JOB_SECRET": "~/secret", "JOB_NODE": "a", "JOB_MEMORY": "64MiB"}
    configured = Dlcmd(dlcmd.home, dlcmd.folder, {f"DIESELFS_{name}": value for name, value in told.items()})
    summary = configured("mount", pets, place, "--json", "--job-node", "b").summary
    assert (summary["job"], summary["node"]) == ("train", "b")
    assert json.loads((place / ".dieselfs/info").read_text())["options"]["memory_bytes"] == 64 * MIB
    dlcmd("umount", place)
    said = dlcmd("mount", pets, place, "--job-nodes", "3", exit_code=EXIT_USAGE).stderr
    assert "--job-nodes belongs to a job: give --job NAME" in said


def test_an_older_generation_can_be_mounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    generation = dlcmd("info", "--json", f"dl://{pets}").objects[0]["generation"]
    dlcmd("ls", "-R", f"dl://{pets}")
    dlcmd("rm", "-ry", f"dl://{pets}/")
    mounted = dlcmd("mount", "--json", "--generation", str(generation), f"dl://{pets}/", place)
    assert mounted.summary["generation"] == generation
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    dlcmd("umount", "--lazy", place)


@pytest.mark.parametrize("view", ["auto", "fuse"])
def test_a_folder_of_a_dataset_is_mounted_by_itself(dlcmd: Dlcmd, pets: str, place: Path, view: str) -> None:
    assert dlcmd("mount", "-n", f"{pets}/train/", place).text == f"would mount dl://{pets}/train on {place}\n"
    ran = dlcmd("mount", f"dl://{pets}/train", place, "--view", view, "--json")
    assert (ran.summary["dataset"], ran.summary["folder"]) == (pets, "train")
    found = compare_trees(os.fsencode(dlcmd.folder / "pets" / "train"), os.fsencode(place), is_mount=True)
    assert found.files > 0 and found.shown == []
    whole = sorted(os.listdir(dlcmd.folder / "pets" / "train"))
    assert sorted(os.listdir(place)) == whole
    info = json.loads((place / ".dieselfs" / "info").read_text())
    assert (info["dataset"], info["folder"], info["files"]) == (pets, "train", found.files)
    plan = (place / ".dieselfs" / "shuffle" / "seed=1").read_text().splitlines()
    assert len(plan) == found.files and all((place / path).is_file() for path in plan)
    (listed,) = (one for one in dlcmd("mounts", "--json").objects if one.get("mountpoint") == str(place))
    assert listed["dataset"] == f"{pets}/train"
    inodes = {name: os.stat(place / name).st_ino for name in whole}
    dlcmd("upgrade", place)
    assert {name: os.stat(place / name).st_ino for name in whole} == inodes
    assert json.loads((place / ".dieselfs" / "info").read_text())["digest"] == info["digest"]
    dlcmd("umount", place)


def test_a_mount_of_a_tag_says_so(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    dlcmd("tag", "add", pets, "v1")
    made = dlcmd("mount", f"{pets}@v1/train", place, "--json").summary
    info = json.loads((place / ".dieselfs" / "info").read_text())
    assert (info["dataset"], info["tag"], info["folder"]) == (pets, "v1", "train")
    (listed,) = (one for one in dlcmd("mounts", "--json").objects if one.get("mountpoint") == str(place))
    assert (listed["dataset"], listed["generation"]) == (f"{pets}@v1/train", made["generation"])
    (line,) = (line for line in dlcmd("mounts").lines if str(place) in line)
    assert (
        line.startswith(f"dl://{pets}@v1/train on {place} (") and f"generation {made['generation']}" in line
    )
    assert f"dlcmd umount {place}" in dlcmd("umount", f"dl://{pets}", exit_code=EXIT_USAGE).stderr.replace(
        "'", ""
    )
    sources = {record.source for record in parse_mountinfo(MOUNTINFO.read_bytes())}
    assert listed["view"] == "fuse" or f"dl://{pets}@v1/train#control" in sources
    dlcmd("umount", place)


def test_what_cannot_be_mounted(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    dlcmd("mount", "no-such-dataset", place, exit_code=EXIT_NOT_FOUND)
    said = dlcmd("mount", f"{pets}/no-such-folder", place, exit_code=EXIT_NOT_FOUND).stderr
    assert f"dl://{pets}/no-such-folder: no such file or folder" in said
    assert (
        "cat.txt is not a folder"
        in dlcmd("mount", f"{pets}/train/cat.txt", place, exit_code=EXIT_USAGE).stderr
    )
    assert "mkdir -p" in dlcmd("mount", pets, "nowhere", exit_code=EXIT_NOT_FOUND).stderr
    (place / "file").touch()
    assert "not empty" in dlcmd("mount", pets, place, exit_code=EXIT_USAGE).stderr
    dlcmd("mount", "-n", pets, place, exit_code=EXIT_USAGE)
    assert "not a folder" in dlcmd("mount", pets, place / "file", exit_code=EXIT_USAGE).stderr
    dlcmd("mount", pets, place, "-o", "no_such_option", exit_code=EXIT_USAGE)
    dlcmd("mount", pets, place, "--memory", "1K", exit_code=EXIT_USAGE)


def test_too_little_memory_for_plans_is_told_with_what_is_enough(dlcmd: Dlcmd, place: Path) -> None:
    (dlcmd.folder / "large").mkdir()
    for number in range(6):
        (dlcmd.folder / "large" / str(number)).write_bytes(os.urandom(8 * MIB))
    dlcmd("put", "-r", "large", "dl://large/")
    told = dlcmd("mount", "large", place, "--memory", "32MiB").stderr
    assert told.startswith("32 MiB of memory are too little for plans") and told.count("\n") == 1
    assert dlcmd("why", place, "--since-start").lines[-1] == told.strip()
    (diagnosis,) = dlcmd("why", place, "--since-start", "--json").objects
    assert diagnosis["memory_advice"] == told.strip()
    dlcmd("umount", place)
    enough = re.search(r"--memory (\d+MiB)", told)
    assert enough is not None
    mounted = dlcmd("mount", "large", place, "--memory", enough[1], "--json")
    assert (mounted.summary["memory_advice"], mounted.stderr) == ("", "")
    assert "MiB of memory" not in dlcmd("why", place, "--since-start").text
    dlcmd("umount", place)
