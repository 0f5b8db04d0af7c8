"""The write folder as a plain folder: what is read of it, and what is not, while programs change it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import AccessDenied, Damaged, NotFound, SourceChanged
from dieselfs_client.writing.changes import Done, Found, Key
from dieselfs_client.writing.upper import State, UpperEntry, WriteFolder


@pytest.fixture
def folder(tmp_path: Path) -> WriteFolder:
    made = WriteFolder(tmp_path / "writes")
    made.make(State("/mnt/exp1", "runs/exp1"), 0o755, (-1, -1))
    return made


def found(folder: WriteFolder, path: bytes) -> Found:
    return next(each for each in folder.walk() if each.path == path)


def append(file: Path) -> None:
    with file.open("ab") as log:
        log.write(b"line\n")


def replace(file: Path) -> None:
    file.unlink()
    file.write_bytes(b"another file, which is longer\n")


@pytest.mark.parametrize(
    ("change", "is_prefix", "is_stored"),
    [(append, False, False), (append, True, True), (replace, True, False), (replace, False, False)],
)
def test_a_file_that_changes_is_stored_as_a_prefix_or_not_at_all(
    folder: WriteFolder, change: Callable[[Path], None], is_prefix: bool, is_stored: bool
) -> None:
    file = folder.upper / "log"
    append(file)
    entry, builder = UpperEntry(folder, found(folder, b"log"), b"exp1/log", is_prefix), ChunkBuilder()
    change(file)
    if not is_stored:
        with pytest.raises(SourceChanged):
            entry.pack(builder)
        return
    entry.pack(builder)
    assert b"".join(entry.contents([(0, 5)])) == b"line\n"
    assert bytes(builder.seal().payload) == b"line\n"


def test_no_link_is_followed(folder: WriteFolder, tmp_path: Path) -> None:
    """A folder that becomes a link after it was listed, as another user may arrange."""
    secret = tmp_path / "secret"
    secret.mkdir()
    for place in secret, folder.upper / "results":
        place.mkdir(exist_ok=True)
        (place / "key").write_bytes(b"key")
    listed = found(folder, b"results/key")
    (folder.upper / "results").rename(folder.upper / "before")
    (folder.upper / "results").symlink_to(secret)
    with pytest.raises(NotADirectoryError):
        UpperEntry(folder, listed, b"key")
    assert {each.path for each in folder.walk()} == {b"before", b"before/key", b"results"}
    (folder.upper / "before/key").unlink()
    (folder.upper / "before/key").symlink_to(secret / "key")
    with pytest.raises(OSError, match="symbolic link"):
        UpperEntry(folder, listed._replace(path=b"before/key"), b"key")


def test_the_state_is_read_again_by_its_user_alone(folder: WriteFolder) -> None:
    done = Done({b"log \xff": Key(0o100644, 1, 2, 3, 4)}, {b"gone"})
    folder.save(State("/mnt/exp1", "runs/exp1", base=7), done)
    assert folder.load() == (State("/mnt/exp1", "runs/exp1", base=7), done)
    os.truncate(folder.folder / "state.json", 5)
    with pytest.raises(Damaged):
        folder.load()
    folder.folder.chmod(0o755)
    with pytest.raises(AccessDenied):
        folder.load()
    folder.folder.chmod(0o700)
    folder.remove()
    with pytest.raises(NotFound):
        folder.load()


def test_a_state_has_a_version_that_older_releases_refuse(folder: WriteFolder) -> None:
    state, place = State("/mnt/exp1", "runs/exp1", base=7), folder.folder / "state.json"
    moved = Done(moved={b"new": b"old"})
    folder.save(state, moved)
    content = json.loads(place.read_bytes())
    with pytest.raises(TypeError, match="'format'"):
        State(**content["state"])  # as a release from before versions reads it
    version = content["state"].pop("format")
    place.write_text(json.dumps(content))
    assert folder.load() == (state, moved)
    content["state"] |= {"format": version + 1, "other": 1}
    place.write_text(json.dumps(content))
    with pytest.raises(
        Damaged, match=r"state\.json: a newer dieselfs has written it \(format 3, .*: dlcmd sync$"
    ):
        folder.load()


def test_a_mark_that_the_disk_cannot_read_is_not_taken_for_none(
    folder: WriteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what a renamed folder shows would be deleted."""
    (folder.upper / "renamed").mkdir()

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "getxattr", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        [*folder.walk()]
