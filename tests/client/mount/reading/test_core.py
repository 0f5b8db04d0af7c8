import stat

import pytest

from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.reading.core import ROOT_INODE, Attributes, MountCore
from tests.support.snapshots import SAMPLE, SOURCE, file_of, snapshot_bytes, with_element


@pytest.fixture
def core() -> MountCore:
    return MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE))


def inode_of(core: MountCore, path: bytes) -> int:
    return core.snapshot.require(path) + 1


def test_attributes_of_a_file(core: MountCore) -> None:
    inode = inode_of(core, b"train/video.mp4")
    assert core.attributes(inode) == Attributes(inode, stat.S_IFREG | 0o644, 130, 1_600_000_000_000_000_003)


def test_write_permission_of_files_can_be_hidden() -> None:
    core = MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE), hides_write_modes=True)
    shown = MountCore(core.snapshot)
    train = inode_of(core, b"train")
    inodes = [train, inode_of(core, b"latest"), *(node + 1 for node in core.child_nodes(train))]
    for inode in inodes:
        mode = shown.attributes(inode).mode
        is_file = stat.S_ISREG(mode)
        assert core.attributes(inode).mode == (mode & ~0o222 if is_file else mode)
    nodes = core.child_nodes(train)
    assert core.siblings(nodes).modes.tolist() == [core.attributes(node + 1).mode for node in nodes]


def test_blocks_are_counted_in_512_bytes() -> None:
    core = MountCore(
        Snapshot(snapshot_bytes({b"a": file_of((0, 0, 512)), b"b": file_of((0, 512, 513))}), SOURCE)
    )
    assert core.attributes(inode_of(core, b"a")).blocks == 1
    assert core.attributes(inode_of(core, b"b")).blocks == 2


def test_lookup(core: MountCore) -> None:
    train = core.lookup(ROOT_INODE, b"train")
    assert core.lookup(train, b"cat.txt") == inode_of(core, b"train/cat.txt")
    assert core.lookup(train, b"dog.txt") == 0
    assert core.lookup(train, b".") == train
    assert core.lookup(train, b"..") == ROOT_INODE
    assert core.lookup(ROOT_INODE, b"..") == ROOT_INODE


def test_an_inode_of_another_generation_is_not_found(core: MountCore) -> None:
    for inode in (0, len(core.snapshot) + 1, 1 << 63):
        with pytest.raises(NotFound):
            core.attributes(inode)


def test_target_of_a_link(core: MountCore) -> None:
    assert core.target(inode_of(core, b"latest")) == b"train/cat.txt"
    with pytest.raises(InvalidInput, match="not a symbolic link"):
        core.target(inode_of(core, b"train"))


def test_a_folder_as_columns(core: MountCore) -> None:
    nodes = core.child_nodes(inode_of(core, b"train"))
    siblings = core.siblings(nodes)
    assert siblings.names == [b"cat.txt", b"empty", b"video.mp4"]
    assert siblings.sizes.tolist() == [5, 0, 130]
    assert siblings.name_lengths.tolist() == [7, 5, 9]
    assert siblings.inodes.tolist() == [inode_of(core, b"train/" + name) for name in siblings.names]
    assert core.siblings(nodes[1:2]).names == [b"empty"]
    assert core.siblings(nodes[3:]).names == []


def test_the_root_as_columns(core: MountCore) -> None:
    assert core.siblings(core.child_nodes(ROOT_INODE)).names == [b"latest", b"test", b"train"]


def test_only_folders_have_children(core: MountCore) -> None:
    with pytest.raises(InvalidInput, match="not a folder"):
        core.child_nodes(inode_of(core, b"train/cat.txt"))


def test_dots(core: MountCore) -> None:
    train = inode_of(core, b"train")
    assert core.dots(train).names == [b".", b".."]
    assert core.dots(train).inodes.tolist() == [train, ROOT_INODE]


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 10, [(0, 0, 10)]),
        (0, 4096, [(0, 0, 100), (1, 0, 30)]),
        (95, 10, [(0, 95, 5), (1, 0, 5)]),
        (100, 1, [(1, 0, 1)]),
        (129, 100, [(1, 29, 1)]),
        (130, 100, []),
        (1 << 62, 100, []),
        (5, 0, []),
    ],
)
def test_extents_of_a_read(
    core: MountCore, offset: int, size: int, expected: list[tuple[int, int, int]]
) -> None:
    parts = core.parts(inode_of(core, b"train/video.mp4"), offset, size)
    assert [(part.extent.chunk, part.start, part.length) for part in parts] == expected


def test_an_empty_file_has_no_extents(core: MountCore) -> None:
    assert core.parts(inode_of(core, b"train/empty"), 0, 4096) == []


def test_only_files_can_be_read(core: MountCore) -> None:
    with pytest.raises(InvalidInput, match="not a file"):
        core.parts(inode_of(core, b"train"), 0, 10)


def test_a_hole_is_damage_and_never_a_short_read() -> None:
    data = snapshot_bytes({b"a": file_of((0, 0, 10), (1, 0, 10))})
    for column, index, value in (("extent_lengths", 0, 9), ("extent_places", 1, 11), ("sizes", 1, 21)):
        core = MountCore(Snapshot(with_element(data, column, index, value), SOURCE))
        with pytest.raises(Damaged, match="a: offset"):
            core.parts(2, 0, 4096)


def test_chunks_ahead() -> None:
    parts = [(chunk, 0, 10) for chunk in range(4)]
    core = MountCore(Snapshot(snapshot_bytes({b"a": file_of(*parts)}, chunks=4), SOURCE))
    assert core.chunks_ahead(2, 0, 10) == [0]
    assert core.chunks_ahead(2, 5, 20) == [0, 1, 2]
    assert core.chunks_ahead(2, 35, 100) == [3]
    assert core.chunks_ahead(2, 40, 100) == []


def test_what_the_control_folder_hides_is_not_listed() -> None:
    """Wherever it stands among its neighbours, and wherever a listing goes on."""
    for names in ([b".dieselfs"], [b".a", b".dieselfs", b"b"], [b".dieselfs", b"z"], [b".a", b".dieselfs"]):
        core = MountCore(Snapshot(snapshot_bytes({name + b"/file": file_of() for name in names}), SOURCE))
        nodes = core.child_nodes(ROOT_INODE)
        assert len(nodes) == len(names)
        found: list[bytes] = []
        while run := core.listed(nodes):
            found += core.siblings(run).names
            nodes = range(run.stop, nodes.stop)
        assert found == [name for name in names if name != b".dieselfs"]
        assert core.listed(core.child_nodes(core.lookup(ROOT_INODE, names[0])))


def test_the_name_is_hidden_in_the_root_only() -> None:
    core = MountCore(Snapshot(snapshot_bytes({b"a/.dieselfs": file_of()}), SOURCE))
    nodes = core.child_nodes(core.lookup(ROOT_INODE, b"a"))
    assert core.listed(nodes) == nodes
