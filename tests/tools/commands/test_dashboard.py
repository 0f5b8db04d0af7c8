"""`dlcmd dashboard`: the page of an embedded home until Ctrl-C, and links to the page of a server."""

import json
import signal
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from dieselfs.errors import EXIT_OK, EXIT_UNAVAILABLE
from tests.support.dlcmd import Dlcmd, wait_until
from tests.support.server import running_server


def is_open(url: str) -> bool:
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


def test_the_page_of_a_home_until_ctrl_c(dlcmd: Dlcmd, pets: str) -> None:
    with dlcmd.start("dashboard", "--json", stdout=-1) as process:
        assert process.stdout is not None
        try:
            page = json.loads(process.stdout.readline())
            address, _, token = page["url"].partition("#login=")
            assert urlsplit(address).hostname == "127.0.0.1" and page["fingerprint"] == ""
            body = json.dumps({"token": token}).encode()
            headers = {"origin": address.rstrip("/"), "content-type": "application/json"}
            with urlopen(Request(f"{address}api/link", body, headers), timeout=30) as answer:
                cookie = answer.headers["set-cookie"].partition(";")[0]
            with urlopen(Request(f"{address}api/datasets", headers={"cookie": cookie}), timeout=30) as answer:
                assert pets in [row["name"] for row in json.load(answer)["rows"]]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == EXIT_OK
            wait_until(lambda: not is_open(address))
        finally:
            process.kill()


def test_the_page_of_a_home_is_there_until_the_last_has_ended(dlcmd: Dlcmd, pets: str) -> None:
    with (
        dlcmd.start("dashboard", "--json", stdout=-1) as first,
        dlcmd.start("dashboard", "--json", stdout=-1) as second,
    ):
        assert first.stdout is not None and second.stdout is not None
        try:
            address, other = (
                json.loads(process.stdout.readline())["url"].partition("#login=")[0]
                for process in (first, second)
                if process.stdout is not None
            )
            assert address == other
            first.send_signal(signal.SIGINT)
            assert first.wait(30) == EXIT_OK
            assert is_open(address)
            second.send_signal(signal.SIGINT)
            assert second.wait(30) == EXIT_OK
            wait_until(lambda: not is_open(address))
        finally:
            first.kill()
            second.kill()


def test_a_link_to_the_page_of_a_server(tmp_path: Path) -> None:
    with running_server(tmp_path / "server", ("--web", "127.0.0.1:0")) as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        (page,) = dlcmd("dashboard", "--json").objects
        assert page["url"].startswith("https://127.0.0.1:") and len(page["fingerprint"]) == 64
        shown = dlcmd("dashboard").text
        fingerprint = ":".join(page["fingerprint"][at : at + 2].upper() for at in range(0, 64, 2))
        assert fingerprint in shown and "#login=" in shown


def test_a_server_without_a_page_says_how_to_set_it(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server, closing(server.client()):
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        assert 'web = "HOST:PORT"' in dlcmd("dashboard", exit_code=EXIT_UNAVAILABLE).stderr


def test_the_link_is_no_word_of_the_browser_s_command(tmp_path: Path) -> None:
    """Other users of the machine see those words."""
    browser, words = tmp_path / "xdg-open", tmp_path / "words"
    browser.write_text(f'#!/bin/sh\necho "$@" > {words}\ncat "$1" >> {words}\n')
    browser.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    (tmp_path / "runtime").mkdir(mode=0o700)
    with running_server(tmp_path / "server", ("--web", "127.0.0.1:0")) as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix, **variables})
        dlcmd("dashboard", "--open")
        wait_until(lambda: words.exists() and "url=https://127.0.0.1:" in words.read_text())
    command, content = words.read_text().splitlines()
    assert "login" not in command and "#login=" in content
    page = tmp_path / "runtime" / "dieselfs" / "dashboard.html"
    assert page.stat().st_mode & 0o777 == 0o600
