"""What a program is told of its job, and what it makes of that."""

import os
from pathlib import Path

import pytest

from dieselfs.cluster.access import JobAccess, open_snapshot
from dieselfs.cluster.secret import read_secret_file
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.settings.table import JobSettings, Settings
from dieselfs.snapshot.reader import Snapshot
from tests.support.dataset import TreeEntry, pack_entries

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return pack_entries([TreeEntry(b"0", 0o100644, 0, b"0")]).snapshot


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("0123456789abcdef" * 4)
    return path


def settings(secret: Path | None = None, name: str | None = "auto", server: str | None = None) -> Settings:
    told = JobSettings(name, job_node="rack-1", job_secret=str(secret) if secret else None)
    return Settings(Path("/home"), Path("/cache"), server, job=told, job_memory_bytes=1 << 30)


def test_the_launcher_says_who_we_are(secret: Path) -> None:
    access = JobAccess.find(settings(secret), "imagenet", "v1", environment=TORCHRUN)
    assert access is not None and access.location == "imagenet@v1"
    assert (access.job.name, access.job.rank, access.job.size) == ("torchrun-10.0.0.1-29500", 5, 8)
    assert access.job.node == "rack-1" and access.secret == read_secret_file(secret)
    named = JobAccess.find(settings(secret, "mine"), "imagenet", environment=TORCHRUN)
    assert named is not None and (named.job.name, named.job.rank) == ("mine", 5)


def test_no_job_is_no_error_unless_one_is_asked_for(secret: Path) -> None:
    for name in (None, ""):
        assert JobAccess.find(settings(secret, name), "imagenet", environment=TORCHRUN) is None
    assert JobAccess.find(settings(secret), "imagenet", environment={}) is None
    with pytest.raises(
        InvalidInput,
        match="name the job: --job NAME, -o job=NAME or DIESELFS_JOB=NAME",
    ):
        JobAccess.find(settings(secret), "imagenet", is_required=True, environment={})


def test_a_job_without_a_secret_is_refused(secret: Path) -> None:
    with pytest.raises(
        InvalidInput, match="--job-secret FILE, -o job_secret=FILE or DIESELFS_JOB_SECRET=FILE"
    ):
        JobAccess.find(settings(), "imagenet", environment=TORCHRUN)
    secret.chmod(0o644)
    with pytest.raises(AccessDenied, match="chmod 600"):
        JobAccess.find(settings(secret), "imagenet", environment=TORCHRUN)


def test_the_daemon_is_told_what_the_program_was_told(secret: Path, snapshot: Snapshot) -> None:
    access = JobAccess.find(settings(secret, server="tcp://a:1"), "imagenet", environment=TORCHRUN)
    assert access is not None
    command = access.daemon_command(snapshot, 7)
    options = dict(zip(command[6::2], command[7::2], strict=True))
    assert command[4:6] == ["imagenet", "--until-idle"]
    assert options == {
        "--generation": f"{snapshot.generation}",
        "--snapshot": "/proc/self/fd/7",
        "--memory": f"{1 << 30}",
        "--server": "tcp://a:1",
        "--job": "torchrun-10.0.0.1-29500",
        "--job-rank": "5",
        "--job-node": "rack-1",
        "--job-secret": str(secret),
    }


@pytest.mark.parametrize("became", ["what it was", "cleared away", "another"])
def test_the_daemon_is_given_the_snapshot_itself(snapshot: Snapshot, tmp_path: Path, became: str) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(snapshot.content)
    ours = Snapshot.open(path)
    if became != "what it was":
        path.unlink()
    if became == "another":
        path.write_bytes(pack_entries([TreeEntry(b"other", 0o100644, 0, b"1")]).snapshot.content)
    descriptor = open_snapshot(ours)
    theirs = Snapshot.open(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
    theirs.verify()
    assert theirs.digest == snapshot.digest
