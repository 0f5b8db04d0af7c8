"""What is stored and deleted for an upper folder, compared with a model of overlayfs and of a dataset."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from dieselfs.snapshot.reader import Stat
from dieselfs_client.writing.changes import Changes, Done, Found, Key, changes, is_other

FILE, FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755
_CLOCK = count(1)


def file() -> Key:
    """A file that is like no other."""
    now = next(_CLOCK)
    return Key(FILE, now % 7, now, now, now)


def stored_as(key: Key) -> Stat:
    return Stat(0, key.mode, key.size, key.mtime_ns)


def parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def above(path: bytes) -> list[bytes]:
    found = []
    while path := parent(path):
        found.append(path)
    return found


def below(paths: Iterable[bytes], path: bytes) -> list[bytes]:
    return [each for each in paths if each.startswith(path + b"/")]


class ModelBase(dict[bytes, Key]):
    def stat(self, path: bytes) -> Stat | None:
        return stored_as(self[path]) if path in self else None

    def below(self, path: bytes) -> list[bytes]:
        return below(self, path) if path in self and stat.S_ISDIR(self[path].mode) else []


@dataclass
class ModelOverlay:
    """As overlayfs without `redirect_dir`, on a base and an upper folder."""

    base: ModelBase
    upper: dict[bytes, Found] = field(default_factory=dict)

    def is_lower_visible(self, path: bytes) -> bool:
        """Whether the base shows at this path, where the upper folder has nothing."""
        for folder in above(path):
            found = self.upper.get(folder)
            if found is not None and (
                found.is_whiteout or found.is_opaque or not stat.S_ISDIR(found.key.mode)
            ):
                return False
        return path in self.base

    def merged(self) -> dict[bytes, Key]:
        shown = {path: found.key for path, found in self.upper.items() if not found.is_whiteout}
        return shown | {
            path: key
            for path, key in self.base.items()
            if path not in self.upper and self.is_lower_visible(path)
        }

    def write(self, path: bytes) -> None:
        self._copy_up_above(path)
        self.upper[path] = Found(path, file())

    def make_folder(self, path: bytes) -> None:
        self._copy_up_above(path)
        self.upper[path] = Found(path, Key(FOLDER), is_opaque=self.is_lower_visible(path))

    def remove(self, path: bytes) -> None:
        """With all below it."""
        self._copy_up_above(path)
        for each in [*below(self.upper, path), path]:
            self.upper.pop(each, None)
        if self.is_lower_visible(path):
            self.upper[path] = Found(path, Key(0), is_whiteout=True)

    def rename_file(self, path: bytes, to: bytes) -> None:
        key = self.merged()[path]
        self.remove(path)
        self._copy_up_above(to)
        self.upper[to] = Found(to, key._replace(ctime_ns=next(_CLOCK)))

    def rename_folder(self, path: bytes, to: bytes) -> None:
        """Of a folder that the base does not have."""
        moved = [path, *below(self.merged(), path)]
        keys = {to + each[len(path) :]: self.merged()[each] for each in moved}
        self.remove(path)
        self._copy_up_above(to)
        for each, key in keys.items():
            is_opaque = stat.S_ISDIR(key.mode) and (each != to or self.is_lower_visible(to))
            self.upper[each] = Found(each, key, is_opaque=is_opaque)

    def _copy_up_above(self, path: bytes) -> None:
        for folder in reversed(above(path)):
            if folder not in self.upper:
                self.upper[folder] = Found(folder, self.base[folder])


def apply(dataset: dict[bytes, Key | Stat], work: Changes) -> None:
    """What the servers do, in one step. A file is never above another entry."""
    for found in work.put:
        dataset[found.path] = found.key
    for path in work.deleted:
        dataset.pop(path, None)
    for path in dataset:
        assert all(stat.S_ISDIR(dataset[folder].mode) for folder in above(path) if folder in dataset)


def random_step(overlay: ModelOverlay, random: Random) -> None:
    shown = overlay.merged()
    folders = [b""] + [path for path, key in shown.items() if stat.S_ISDIR(key.mode)]
    files = [path for path, key in shown.items() if not stat.S_ISDIR(key.mode)]
    new = random.choice(folders[-4:])
    new = (new + b"/" if new else b"") + random.choice([b"a", b"b", b"c"])
    step = random.choice(["write", "folder", "remove", "rename", "rename folder"])
    if step == "write" and not stat.S_ISDIR(shown.get(new, Key(FILE)).mode):
        overlay.write(new)
    elif step == "folder" and new not in shown:
        overlay.make_folder(new)
    elif step == "remove" and shown:
        overlay.remove(random.choice([*shown]))
    elif step == "rename" and files and not stat.S_ISDIR(shown.get(new, Key(FILE)).mode):
        if (path := random.choice(files)) != new:
            overlay.rename_file(path, new)
    elif step == "rename folder" and new not in shown:
        pure = [path for path in folders[1:] if path not in overlay.base and not new.startswith(path + b"/")]
        if pure:
            overlay.rename_folder(random.choice(pure), new)


@pytest.mark.parametrize("seed", range(40))
def test_rounds_make_the_dataset_equal_to_what_programs_see(seed: int) -> None:
    random = Random(seed)
    overlay = ModelOverlay(ModelBase())
    while len(overlay.merged()) < 12:  # the base is made by the same steps
        random_step(overlay, random)
    base = ModelBase(overlay.merged())
    overlay, done = ModelOverlay(base), Done()
    dataset: dict[bytes, Key | Stat] = {path: stored_as(key) for path, key in base.items()}
    for _ in range(12):
        for _ in range(random.randrange(8)):
            random_step(overlay, random)
        work = changes(overlay.upper.values(), done, base)
        apply(dataset, work)
        done.note({found.path: found.key for found in work.put}, {*work.deleted})
        shown = overlay.merged()
        assert dataset.keys() == shown.keys()
        assert not [path for path, key in shown.items() if not key.is_stored_as(stored_of(dataset[path]))]
        assert not any(is_other(stored_of(dataset[path]), done.expected(path, base)) for path in dataset)
    again = changes(overlay.upper.values(), done, base)
    assert not [*again.paths()], "an idle round stores nothing"


def stored_of(stored: Key | Stat) -> Stat:
    return stored if isinstance(stored, Stat) else stored_as(stored)


def test_an_entry_that_is_no_file_folder_or_link_is_refused() -> None:
    pipe = Found(b"pipe", Key(stat.S_IFIFO | 0o600, ctime_ns=1))
    work = changes([pipe, Found(b"log", file())], Done(), ModelBase())
    assert work.refused == [b"pipe"]
    assert [found.path for found in work.put] == [b"log"]


def test_a_file_that_was_only_opened_for_writing_is_not_stored_again() -> None:
    key = file()
    copied_up = Found(b"log", key._replace(ctime_ns=next(_CLOCK), inode=9))
    assert not changes([copied_up], Done(), ModelBase({b"log": key})).put
