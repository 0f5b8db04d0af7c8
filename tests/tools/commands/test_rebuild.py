"""dlcmd rebuild: metadata from chunks."""

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE, InvalidInput
from dieselfs_tools.commands.maintain import parse_time
from tests.support.dlcmd import Dlcmd


def test_metadata_is_made_again_from_chunks(dlcmd: Dlcmd, pets: str) -> None:
    before = dlcmd("ls", "-R", "-l", f"dl://{pets}").lines
    assert dlcmd("rebuild", "-n", f"dl://{pets}").text.startswith("would rebuild")
    done = dlcmd("rebuild", "--json", f"dl://{pets}").summary
    assert (done["files"], done["damaged_chunks"]) == (3, 0)
    assert dlcmd("ls", "-R", "-l", f"dl://{pets}").lines == before
    since = dlcmd("rebuild", "--json", "--since", "2100-01-01", f"dl://{pets}").summary
    assert (since["chunks"], since["files"]) == (0, 3)


def test_a_dataset_that_never_was_cannot_be_rebuilt(dlcmd: Dlcmd) -> None:
    dlcmd("rebuild", "dl://no-such-dataset", exit_code=EXIT_NOT_FOUND)
    dlcmd("rebuild", "--since", "yesterday", "dl://no-such-dataset", exit_code=EXIT_USAGE)


def test_times() -> None:
    assert parse_time("1700000000") == 1_700_000_000
    assert parse_time("2026-05-01T12:30+00:00") == 1_777_638_600
    assert parse_time("1900-01-01") == 0
    with pytest.raises(InvalidInput, match="neither a date"):
        parse_time("soon")
