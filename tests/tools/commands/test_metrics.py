"""`dlcmd metrics` with the daemons of one home."""

import os
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dieselfs.errors import EXIT_USAGE
from tests.support.dlcmd import Dlcmd


@pytest.fixture
def node(dlcmd: Dlcmd, pets: str) -> Dlcmd:
    """An embedded server is up."""
    dlcmd("ls", f"dl://{pets}")
    return dlcmd


def test_metrics_of_the_embedded_server_are_printed(node: Dlcmd) -> None:
    text = node("metrics").stdout.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    calls = families["dieselfs_rpc_answered_seconds"].samples
    assert any(each.labels.get("component") == "server" and each.value > 0 for each in calls)


def test_a_file_is_replaced_whole(node: Dlcmd) -> None:
    place = node.folder / "dieselfs.prom"
    place.write_text("old")
    said = node("metrics", "--textfile", place).stdout
    assert b"metrics of" in said and "dieselfs_uptime_seconds" in place.read_text()
    assert [each.name for each in node.folder.iterdir() if "prom" in each.name] == ["dieselfs.prom"]
    node("metrics", "--textfile", Path("/nonexistent/x.prom"), exit_code=EXIT_USAGE)


def test_they_are_served_until_the_command_is_ended(node: Dlcmd) -> None:
    with node.start("metrics", "--listen", "127.0.0.1:0", stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1].decode()
            with urlopen(url, timeout=30) as answer:
                assert b"dieselfs_rpc_requests_total" in answer.read()
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    "words",
    [("--listen", "unix:/x"), ("--listen", "127.0.0.1:99999"), ("--listen", "h:1", "--textfile", "x")],
)
def test_what_cannot_be_served_is_refused(dlcmd: Dlcmd, words: tuple[str, ...]) -> None:
    dlcmd("metrics", *words, exit_code=EXIT_USAGE)
