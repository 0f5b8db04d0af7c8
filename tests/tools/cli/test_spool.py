"""Standard input as a file, for as long as it is needed."""

import io
import os
import tempfile
from pathlib import Path

import pytest

from dieselfs.errors import DieselfsError
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import spooled

QUIET = Output(is_quiet=True)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_the_file_holds_it_all_and_is_gone_afterwards(scratch: Path, size: int) -> None:
    content = os.urandom(size)
    with spooled(io.BytesIO(content), QUIET) as path:
        assert Path(path).read_bytes() == content
        assert Path(path).stat().st_mode & 0o777 == 0o644, "which the dataset records"
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700, "other users cannot read it"
    assert os.listdir(scratch) == []


def test_a_failure_afterwards_leaves_nothing_and_stays_what_it_is(scratch: Path) -> None:
    with pytest.raises(OSError, match="of another"), spooled(io.BytesIO(b"x"), QUIET):
        raise OSError("of another")
    assert os.listdir(scratch) == []


def test_no_room_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    wanted = pytest.raises(DieselfsError, match="/no/such/folder: No such file or directory; set TMPDIR")
    with wanted, spooled(io.BytesIO(b"x"), QUIET):
        pass
