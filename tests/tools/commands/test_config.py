"""dlcmd config: what is set is used, each value names its source, and the test meets what commands would meet."""

import os
from dataclasses import replace

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer

PLACE = ".config/dieselfs/config.toml"


def test_what_is_set_is_in_force(dlcmd: Dlcmd) -> None:
    dlcmd("config", "set", "-n", "server", "unix:/nowhere")
    assert not (dlcmd.folder / PLACE).exists()
    dlcmd("config", "set", "server", "unix:/nowhere")
    assert dlcmd("config", "get", "server").text == "unix:/nowhere\n"
    assert "/nowhere" in dlcmd("ls", exit_code=EXIT_UNAVAILABLE).stderr
    dlcmd("config", "unset", "server")
    dlcmd("ls")
    assert "is not set in" in dlcmd("config", "unset", "server", exit_code=EXIT_NOT_FOUND).stderr


def test_each_value_names_its_source(dlcmd: Dlcmd) -> None:
    dlcmd("config", "set", "job", "auto")
    dlcmd("config", "set", "tls", "off")
    here = replace(dlcmd, variables={"DIESELFS_TLS": "on"})
    found = {one["name"]: one for one in here("config", "list", "--json", "--server", "unix:/s").objects}
    assert (found["server"]["value"], found["server"]["origin"]) == ("unix:/s", "option")
    assert (found["tls"]["value"], found["tls"]["where"]) == ("on", "DIESELFS_TLS")
    assert (found["job"]["value"], found["job"]["where"]) == ("auto", str(dlcmd.folder / PLACE))
    assert found["key_file"]["origin"] == "default"
    assert "tls        " in here("config", "list").text
    assert "overrides it" in here("config", "set", "tls", "on").stderr
    assert "is not set" in dlcmd("config", "get", "server", exit_code=EXIT_NOT_FOUND).stderr


def test_wrong_names_and_values(dlcmd: Dlcmd) -> None:
    assert "known: " in dlcmd("config", "set", "speed", "fast", exit_code=EXIT_USAGE).stderr
    assert "on, off" in dlcmd("config", "set", "tls", "maybe", exit_code=EXIT_USAGE).stderr
    assert "asks on a terminal only" in dlcmd("config", exit_code=EXIT_USAGE).stderr


def test_the_test_reads_a_file(own_dlcmd: Dlcmd) -> None:
    (own_dlcmd.folder / "cat.txt").write_bytes(b"x" * 5)
    own_dlcmd("put", "-q", "cat.txt", "dl://pets/")
    ran = own_dlcmd("config", "test", "--json")
    assert [one["name"] for one in ran.objects] == ["settings", "key", "server", "version", "read"]
    assert "byte" in ran.objects[-1]["found"]


def test_the_test_ends_at_what_fails(dlcmd: Dlcmd) -> None:
    ran = dlcmd("config", "test", "--server", "unix:/nowhere", exit_code=EXIT_UNAVAILABLE)
    assert ran.lines[-1].startswith("key ")
    (dlcmd.folder / "key").write_text("for all to see")
    ran = dlcmd("config", "test", "--server", "unix:/nowhere", "--key-file", "key", exit_code=EXIT_REFUSED)
    assert "chmod 600" in ran.stderr


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks_tests_and_saves(dlcmd: Dlcmd, server: RunningServer, answer: str) -> None:
    ours, theirs = os.openpty()
    process = dlcmd.start("config", stdout=theirs, stderr=theirs, stdin=theirs)
    try:
        os.write(ours, f"{server.unix}\n\n{answer}\n".encode())
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    if answer == "y":
        assert server.unix in (dlcmd.folder / PLACE).read_text()
        dlcmd("config", "test")
    else:
        assert not (dlcmd.folder / PLACE).exists()
