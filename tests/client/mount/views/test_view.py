import pytest

from dieselfs.settings.table import AUTO, FUSE, IMAGE, OVERLAY
from dieselfs.settings.table import VIEWS as NAMES
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import VIEWS, Choice
from dieselfs_client.mount.reading.core import ROOT_INODE
from dieselfs_client.mount.views.view import PRIVATE_MODE, View, open_view
from tests.support.dataset import TreeEntry, pack_entries

SNAPSHOT = pack_entries([TreeEntry(b"file", 0o100644, 0, b"content")]).snapshot


def opened(name: str, options: MountOptions) -> View:
    return open_view(Choice(name, ""), SNAPSHOT, options, None)


def test_each_view_has_a_row() -> None:
    assert {*VIEWS, AUTO} == {*NAMES}


@pytest.mark.parametrize("name", [FUSE, OVERLAY])
def test_a_view_that_keeps_nothing(name: str) -> None:
    view = opened(name, MountOptions(allow_other=True))
    assert (view.kept, view.metadata_bytes, view.reads_ahead, view.is_private) == (None, 0, True, False)


def test_only_a_view_over_fuse_keeps_others_out_by_the_mode_of_the_root() -> None:
    modes = {name: opened(name, MountOptions()).core().attributes(ROOT_INODE).mode & 0o777 for name in VIEWS}
    assert modes[OVERLAY] == modes[IMAGE] == PRIVATE_MODE != modes[FUSE]


def test_files_are_shown_without_write_modes_where_the_mount_takes_writes() -> None:
    for scores, mode in ((True, 0o444), (False, 0o644)):
        core = opened(FUSE, MountOptions(scores=scores)).core()
        assert core.attributes(core.lookup(ROOT_INODE, b"file")).mode & 0o777 == mode


def test_an_image_is_kept_for_the_next_daemon_until_it_is_closed() -> None:
    view = opened(IMAGE, MountOptions())
    assert view.kept is not None and view.metadata_bytes > 0 and not view.reads_ahead
    view.close()
    assert view.kept is None
