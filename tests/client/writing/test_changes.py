"""What is stored and deleted for an upper folder, compared with a model of overlayfs and of a dataset."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from dieselfs.snapshot.reader import Stat
from dieselfs_client.writing.changes import Changes, Done, Found, Key, Remains, changes, is_other

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
    """As overlayfs with `redirect_dir`, on a base and an upper folder."""

    base: ModelBase
    upper: dict[bytes, Found] = field(default_factory=dict)

    def shows(self, path: bytes) -> bytes | None:
        """Which folder of the base a folder shows."""
        if not path:
            return b""
        found, shown = self.upper.get(path), self.below_shown(path)
        if found is not None:
            if found.is_whiteout or found.is_opaque or not stat.S_ISDIR(found.key.mode):
                return None
            if found.redirect.startswith(b"/"):
                shown = found.redirect[1:]
            elif found.redirect and shown is not None:
                shown = (parent(shown) + b"/" if parent(shown) else b"") + found.redirect
        is_there = shown is not None and shown in self.base and stat.S_ISDIR(self.base[shown].mode)
        return shown if is_there else None

    def below_shown(self, path: bytes) -> bytes | None:
        """The path in the base of an entry where the upper folder has nothing; it may not be there."""
        above, name = self.shows(parent(path)), path.rpartition(b"/")[2]
        return None if above is None else (above + b"/" if above else b"") + name

    def is_lower_visible(self, path: bytes) -> bool:
        """Whether the base shows at this path, where the upper folder has nothing."""
        return self.below_shown(path) in self.base

    def merged(self, folder: bytes = b"") -> dict[bytes, Key]:
        head, found = folder + b"/" if folder else b"", dict[bytes, Key]()
        shown = self.shows(folder)
        if shown is not None:
            names = [path for path in self.base if path and parent(path) == shown]
            found = {head + path.rpartition(b"/")[2]: self.base[path] for path in names}
        for path, entry in self.upper.items():
            if parent(path) == folder:
                found.pop(path, None)
                if not entry.is_whiteout:
                    found[path] = entry.key
        for path, key in [*found.items()]:
            if stat.S_ISDIR(key.mode):
                found |= self.merged(path)
        return found

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
        self._copy_up_above(path + b"/")
        self._copy_up_above(to)
        shown, top = self.shows(path), self.upper[path]
        moved = {to + each[len(path) :]: self.upper[each] for each in [path, *below(self.upper, path)]}
        self.remove(path)
        if shown is None:
            top = top._replace(is_opaque=top.is_opaque or self.is_lower_visible(to))
        elif parent(path) != parent(to) and not top.redirect.startswith(b"/"):
            top = top._replace(redirect=b"/" + shown)
        else:
            top = top._replace(redirect=top.redirect or shown.rpartition(b"/")[2])
        moved[to] = top
        self.upper |= {each: found._replace(path=each) for each, found in moved.items()}

    def _copy_up_above(self, path: bytes) -> None:
        for folder in reversed(above(path)):
            if folder not in self.upper:
                shown = self.shows(folder)
                assert shown is not None
                self.upper[folder] = Found(folder, self.base[shown])


def apply(
    dataset: dict[bytes, Key | Stat],
    work: Changes,
    base: Remains | ModelBase,
    is_whole: bool = True,
) -> None:
    """What the servers do, in one step. A file is never above another entry."""
    before = dict(dataset)
    for found in work.put:
        dataset[found.path] = found.key
    for path, source in work.moved.items():
        dataset[path] = before[base.place(source)] if isinstance(base, Remains) else stored_as(base[source])
    if not is_whole:
        return
    for path in work.deleted:
        dataset.pop(path, None)
    for path in [*dataset]:  # a folder may be there because of what is in it
        for folder in above(path):
            dataset.setdefault(folder, Key(FOLDER))
    for path in dataset:
        assert all(stat.S_ISDIR(dataset[folder].mode) for folder in above(path) if folder in dataset)


def random_step(overlay: ModelOverlay, random: Random) -> None:
    shown = overlay.merged()
    folders = [b""] + [path for path, key in shown.items() if stat.S_ISDIR(key.mode)]
    files = [path for path, key in shown.items() if not stat.S_ISDIR(key.mode)]
    new = random.choice(folders[-4:])
    new = (new + b"/" if new else b"") + random.choice([b"a", b"b", b"c"])
    step = random.choice(["write", "folder", "remove", "rename", "rename folder", "rename folder"])
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
        other = [path for path in folders[1:] if not new.startswith(path + b"/")]
        if other:
            overlay.rename_folder(random.choice(other), new)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("fault", ["none", "crashes", "base gone", "both"])
def test_rounds_make_the_dataset_equal_to_what_programs_see(seed: int, fault: str) -> None:
    """Crashed rounds have done a part of their work, or all, and noted nothing of it. The base is gone: its generation
    is purged after a crash.
    """
    random = Random(seed)
    overlay = ModelOverlay(ModelBase())
    while len(overlay.merged()) < 12:  # the base is made by the same steps
        random_step(overlay, random)
    base = ModelBase(overlay.merged())
    overlay, done = ModelOverlay(base), Done()
    dataset: dict[bytes, Key | Stat] = {path: stored_as(key) for path, key in base.items()}
    seen: ModelBase | Remains = base
    for number in range(12):
        for _ in range(random.randrange(8)):
            random_step(overlay, random)
        if fault in ("base gone", "both") and number >= 6:
            newest = ModelBase({path: key_of(stored) for path, stored in dataset.items()})
            seen = Remains(newest, done)
        work = changes(overlay.upper.values(), done, seen)
        done.begin(work, seen)
        if fault in ("crashes", "both") and seen is base and random.random() < 0.3:
            apply(dataset, work, seen, is_whole=random.random() < 0.5)
            continue
        apply(dataset, work, seen)
        done.note({found.path: found.key for found in work.put}, work.moved, {*work.deleted})
        shown = overlay.merged()
        assert dataset.keys() == shown.keys()
        assert not [path for path, key in shown.items() if not key.is_stored_as(stored_of(dataset[path]))]
        if seen is base:
            assert not any(is_other(stored_of(dataset[path]), done.expected(path, base)) for path in dataset)
        again = changes(overlay.upper.values(), done, seen)
        assert not [*again.paths()], "an idle round stores nothing"


def key_of(stored: Key | Stat) -> Key:
    return stored if isinstance(stored, Key) else Key(stored.mode, stored.size, stored.mtime_ns)


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
