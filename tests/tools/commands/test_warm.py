"""What `dlcmd warm` understands; over real mounts it is tried in tests/end_to_end/test_warm.py."""

import pytest

from dieselfs.errors import EXIT_USAGE, InvalidInput
from dieselfs_tools.commands.warm import parse_share
from tests.support.dlcmd import Dlcmd


@pytest.mark.parametrize(("text", "share"), [("80%", 0.8), ("80", 0.8), ("100%", 1.0), (" 12.5% ", 0.125)])
def test_a_part_is_a_percentage(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "%", "0", "0%", "100.1%", "-1", "nan", "inf", "all", "80%%"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a part"):
        parse_share(text)


def test_a_folder_that_is_no_mount_is_refused(dlcmd: Dlcmd) -> None:
    assert "no dataset is mounted there" in dlcmd("warm", dlcmd.folder, exit_code=EXIT_USAGE).stderr
