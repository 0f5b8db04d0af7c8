"""`dlcmd why` without a mount; over a real one it is tried in tests/end_to_end/test_metrics.py."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_a_folder_without_a_mount_is_named(dlcmd: Dlcmd) -> None:
    said = dlcmd("why", dlcmd.folder, "--since-start", exit_code=EXIT_NOT_FOUND).stderr
    assert str(dlcmd.folder) in said and "dlcmd mounts" in said
    dlcmd("why", dlcmd.folder, "--for", "0s", exit_code=EXIT_USAGE)
