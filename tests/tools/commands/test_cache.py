"""dlcmd cache: a daemon that shares chunks, started, used and stopped."""

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


@pytest.fixture(autouse=True)
def own_runtime_folder(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(dlcmd.folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(dlcmd.folder / "state"))


def test_it_is_started_and_stopped(dlcmd: Dlcmd, pets: str) -> None:
    assert dlcmd("cache", "-n", pets).text == f"would share dl://{pets} on this node\n"
    started = dlcmd("cache", pets, "--memory", "64M", "--policy", "oneshot", "--json").summary
    try:
        assert started["dataset"] == pets
        listed = [
            one for one in dlcmd("mounts", "--json").objects if one.get("process") == started["process"]
        ]
        assert [(one["type"], one["dataset"], one["job"]) for one in listed] == [("cache", pets, "")]
        assert (
            f"dl://{pets} in memory (cache daemon {started['process']}, generation " in dlcmd("mounts").text
        )
        assert dlcmd("cat", f"dl://{pets}/train/cat.txt").stdout == b"xxxxx"
        assert "shares" in dlcmd("cache", pets, exit_code=EXIT_USAGE).stderr
    finally:
        stopped = dlcmd("cache", pets, "--stop", "--json").summary
    assert stopped["process"] == started["process"]
    assert "no daemon shares" in dlcmd("cache", pets, "--stop", exit_code=EXIT_NOT_FOUND).stderr


def test_it_takes_part_in_a_job(dlcmd: Dlcmd, pets: str) -> None:
    secret = dlcmd.folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    job = ("--job", "train", "--job-secret", "secret")
    would = dlcmd("cache", "-n", pets, *job, "--job-node", "a", "--json").summary
    assert (would["job"], would["node"], would["dry_run"]) == ("train", "a", True)
    started = dlcmd("cache", pets, "--memory", "64M", *job, "--json").summary
    try:
        assert started["members"] == [started["node"]]
        assert "job train" in dlcmd("cache", pets, *job, exit_code=EXIT_USAGE).stderr
        assert "no daemon shares" in dlcmd("cache", pets, "--stop", exit_code=EXIT_NOT_FOUND).stderr
    finally:
        stopped = dlcmd("cache", pets, *job, "--stop", "--json").summary
    assert stopped["process"] == started["process"]
    assert "secret" in dlcmd("cache", pets, "--job", "train", exit_code=EXIT_USAGE).stderr
    assert (
        "no Slurm, torchrun or Open MPI job detected"
        in dlcmd("cache", pets, "--job", "auto", exit_code=EXIT_USAGE).stderr
    )


def test_it_is_found_when_the_dataset_has_a_newer_generation(dlcmd: Dlcmd, pets: str) -> None:
    older = dlcmd("cache", pets, "--memory", "64M", "--json").summary
    try:
        dlcmd("put", "-q", "pets/train/cat.txt", f"dl://{pets}/again")
        newer = dlcmd("cache", pets, "--memory", "64M", "--json").summary
        try:
            assert older["generation"] < newer["generation"]
            said = dlcmd("cache", pets, "--stop", exit_code=EXIT_USAGE).stderr
            assert f"generations {older['generation']}, {newer['generation']} of {pets} are shared" in said
        finally:
            generation = str(newer["generation"])
            stopped = dlcmd("cache", pets, "--stop", "--generation", generation, "--json").summary
        assert stopped["process"] == newer["process"]
    finally:
        stopped = dlcmd("cache", pets, "--stop", "--json").summary
    assert (stopped["process"], stopped["generation"]) == (older["process"], older["generation"])


def test_a_job_that_is_configured_is_the_default(dlcmd: Dlcmd, pets: str) -> None:
    secret = dlcmd.folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    told = {"DIESELFS_JOB": "train", "DIESELFS_JOB_SECRET": "secret", "DIESELFS_JOB_NODE": "a"}
    would = Dlcmd(dlcmd.home, dlcmd.folder, told)("cache", "-n", pets, "--json").summary
    assert (would["job"], would["node"]) == ("train", "a")
    auto = Dlcmd(dlcmd.home, dlcmd.folder, {**told, "DIESELFS_JOB": "auto"})
    assert "job" not in auto("cache", "-n", pets, "--json").summary
    assert "give --job" in dlcmd("cache", pets, "--job-rank", "0", exit_code=EXIT_USAGE).stderr


def test_what_does_not_go_together(dlcmd: Dlcmd, pets: str) -> None:
    assert "--stop" in dlcmd("cache", pets, "--stop", "--memory", "1G", exit_code=EXIT_USAGE).stderr
    assert dlcmd("cache", "dl://nothing", exit_code=EXIT_NOT_FOUND).stderr
