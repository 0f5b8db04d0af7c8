"""`dlcmd report` without a mount; over a real one it is tried in tests/end_to_end/test_metrics.py."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_what_is_not_there_is_named(dlcmd: Dlcmd) -> None:
    said = dlcmd("report", "training-7", "-o", "report.html", exit_code=EXIT_NOT_FOUND).stderr
    assert "training-7" in said and "dlcmd mounts" in said
    assert not (dlcmd.folder / "report.html").exists()


def test_a_page_needs_a_file(dlcmd: Dlcmd) -> None:
    assert "-o report.html" in dlcmd("report", dlcmd.folder, exit_code=EXIT_USAGE).stderr
