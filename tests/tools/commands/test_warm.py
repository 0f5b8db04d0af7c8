"""What `dlcmd warm` understands; over real mounts it is tried in tests/end_to_end/test_warm.py."""

import pytest

from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import EXIT_NOT_FOUND, InvalidInput
from dieselfs_client.mount.control.warmth import MountWarmth
from dieselfs_tools.cli.output import Output
from dieselfs_tools.commands.memory import parse_share, rest_of
from tests.support.dlcmd import Dlcmd


@pytest.mark.parametrize(("text", "share"), [("80%", 0.8), ("80", 0.8), ("100%", 1.0), (" 12.5% ", 0.125)])
def test_a_part_is_a_percentage(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "%", "0", "0%", "100.1%", "-1", "nan", "inf", "all", "80%%"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a percentage"):
        parse_share(text)


@pytest.mark.parametrize(
    ("wanted_bytes", "damaged", "unknown", "said"),
    [
        (100, 0, (), ""),
        (60, 0, (), "; the dataset has 100 B, and the rest does not fit"),
        (60, 1, (), "; the dataset has 100 B, and the rest is damaged, or does not fit"),
        (60, 0, ("node-1",), ""),
    ],
)
def test_what_does_not_fit_is_said(
    wanted_bytes: int, damaged: int, unknown: tuple[str, ...], said: str
) -> None:
    found = MountWarmth(Warmth(60, wanted_bytes, damaged), {}, unknown, dataset_bytes=100)
    assert rest_of(Output(), found) == said


def test_a_folder_that_is_no_mount_is_refused(dlcmd: Dlcmd) -> None:
    assert "no dataset is mounted there" in dlcmd("warm", dlcmd.folder, exit_code=EXIT_NOT_FOUND).stderr
