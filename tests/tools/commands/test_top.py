"""`dlcmd top` with the embedded server of one home."""

import json

from dieselfs.errors import EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_one_view_for_people_and_for_programs(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("ls", f"dl://{pets}")
    assert "calls/s" in dlcmd("top", "--once", "--interval", "0.1s").stdout.decode()
    *seen, summary = map(
        json.loads, dlcmd("top", "--once", "--interval", "0.1s", "--json").stdout.splitlines()
    )
    assert summary["processes"] == len(seen) > 0
    assert any(each["about"] == {"component": "server"} and each["activity"]["seconds"] > 0 for each in seen)


def test_an_interval_of_nothing_is_refused(dlcmd: Dlcmd) -> None:
    dlcmd("top", "--once", "--interval", "0s", exit_code=EXIT_USAGE)
