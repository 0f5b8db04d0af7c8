"""Samples that are single files: all files of a folder, those that match patterns, or a list. No I/O of its own."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import printable, user_path
from dieselfs.samples.loading import Loader, Transform, check_loader
from dieselfs.samples.sample_set import LocationList, SampleSet
from dieselfs.samples.source import ConnectOptions, SampleSource, open_source
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below

_SHOWN = 5
"""Missing files that an error names."""

_GLOB_PARTS = re.compile(rb"\*\*/|\*\*|\*|\?|\[(!?)(\]?[^\]/]*)\]|.", re.DOTALL)


class FileSamples(SampleSet):
    """Samples that are single files, in the order of their paths, or of the list.

        FileSamples("imagenet@v3/train", "**/*.JPEG")            # through the library
        FileSamples("/mnt/imagenet", files=["val/1.JPEG", ...])  # a list of paths, below the root

    An item is `transform(loader(content))`, and with `target` `(that, target(path))`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        patterns: str | Iterable[str] | None = None,
        transform: Transform | None = None,
        *,
        files: Iterable[str | bytes | os.PathLike[str]] | None = None,
        target: Callable[[str], Any] | None = None,
        loader: Loader = bytes,
        copy: bool = True,
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`patterns`: one or several, relative to the root: `*`, `?` and `[...]` match within a name, `**/` any
        folders; None takes all files. `files`: a list of paths instead, relative to the root or as `open` takes them
        on a mount; a file may occur several times. `target` receives the path relative to the root. `root` and the
        options of the connection: see `open_source`; `copy`: see `FolderSamples`.

        Raises NotFound if a file of the list is missing, or nothing matches; InvalidInput, AccessDenied, Unavailable.
        """
        if patterns is not None and files is not None:
            raise InvalidInput("give patterns or files, not both")
        check_loader(loader)
        super().__init__(root, *open_source(root, **connection))
        self.transform, self.target, self.loader, self._is_copied = transform, target, loader, copy
        if files is not None:
            paths = list(files)
            self._find(lambda: find_files(self.source, self.folder, paths, root))
        else:
            given = None if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)
            self._find(lambda: match_files(self.snapshot, self.folder, given))

    @property
    def samples(self) -> LocationList:
        """The path of each sample. On a mount, `open` takes it; else it is the path in the dataset."""
        return LocationList(self._location, self.nodes)

    imgs = samples

    def _items(self, indices: Any) -> list[Any]:
        nodes = self.nodes[indices].tolist()
        loaded = map(self.loader, self._contents(nodes, self.loader))
        items = list(loaded if self.transform is None else map(self.transform, loaded))
        if self.target is None:
            return items
        start = len(self.folder) + 1 if self.folder else 0
        paths = [os.fsdecode(self.snapshot.path(node)[start:]) for node in nodes]
        return [(item, self.target(path)) for item, path in zip(items, paths, strict=True)]


def find_files(
    source: SampleSource,
    folder: bytes,
    paths: Iterable[str | bytes | os.PathLike[str]],
    root: str | os.PathLike[str],
) -> Numbers:
    """The nodes of files by their paths, relative to `folder` or whole: below `root`, which is how the user writes the
    folder, or as `SampleSource.path_of` takes them. Links are followed. Shape (n,).

    Raises NotFound, which names the first missing ones; InvalidInput for a folder, or an empty list.
    """
    snapshot = source.snapshot
    written = os.path.join(os.fsencode(root), b"")
    nodes, missing = [], []
    for path in paths:
        name = os.fsencode(path)
        inside = None if name.startswith(written) else source.path_of(name)
        if inside is None:
            inside = b"/".join(filter(None, (folder, user_path(name.removeprefix(written)))))
        whole = user_path(inside)
        node = _file_at(snapshot, whole)
        nodes.append(node)
        if node < 0:
            missing.append(printable(whole))
    if missing:
        some = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise NotFound(f"dl://{snapshot.dataset}: {len(missing)} of {len(nodes)} files do not exist: {some}")
    if not nodes:
        raise InvalidInput("the list of files is empty")
    return np.array(nodes, np.int64)


def _file_at(snapshot: Snapshot, path: bytes) -> int:
    """The node of a file, or -1."""
    node = snapshot.find(path)
    if node < 0 or not snapshot.stat(node).is_file:
        try:
            node = snapshot.follow(path)
        except NotFound:
            return -1
    return node if snapshot.stat(node).is_file else -1


def match_files(snapshot: Snapshot, folder: bytes, patterns: list[str] | None) -> Numbers:
    """The files below `folder` whose paths, relative to it, match one of `patterns` (None: all): shape (n,), in the
    order of their paths. Takes about 1 us per file.

    Raises NotFound if there is none, InvalidInput if `folder` is none or a link matches: in an order each file comes
    under its own path.
    """
    nodes = files_below(snapshot, snapshot.require_folder(folder))
    links = snapshot.column("link_nodes").astype(np.int64)
    paths, link_paths = snapshot.path_many(nodes), snapshot.path_many(links)
    start = len(folder) + 1 if folder else 0
    try:
        is_match = re.compile(
            b"|".join(map(_glob, patterns)) if patterns is not None else b".*", re.DOTALL
        ).fullmatch
    except re.error as error:
        raise InvalidInput(f"a pattern in {patterns} is not possible: {error}") from None
    for path in link_paths:
        if path.startswith(folder) and is_match(path[start:]) and _file_at(snapshot, path) >= 0:
            raise InvalidInput(
                f"dl://{snapshot.dataset}/{printable(path)} is a symbolic link: name it in files=, or store its target"
            )
    found = sorted(
        (path, node) for path, node in zip(paths, nodes.tolist(), strict=True) if is_match(path[start:])
    )
    if not found:
        wanted = f"matches {', '.join(patterns)}" if patterns is not None else "is there"
        raise NotFound(f"dl://{snapshot.dataset}/{printable(folder)}: no file {wanted}")
    return np.array([node for _, node in found], np.int64)


def _glob(pattern: str) -> bytes:
    """A pattern as a regular expression for whole paths."""
    text = os.fsencode(pattern).strip(b"/")
    if not text:
        raise InvalidInput(f"{pattern!r} is not a pattern: write for example *.jpg or **/*.jpg")
    return b"".join(_glob_part(part) for part in _GLOB_PARTS.finditer(text))


def _glob_part(part: re.Match[bytes]) -> bytes:
    text = part[0]
    if text == b"**/":
        return b"(?:.*/)?"
    if text == b"**":
        return b".*"
    if text in (b"*", b"?"):
        return b"[^/]" + (b"*" if text == b"*" else b"")
    if part[2]:
        inside = re.sub(rb"[\\\[\]^&~|]|^-|(?<=-)-", rb"\\\g<0>", part[2])  # no set operations
        return b"(?!/)[" + (b"^" if part[1] else b"") + inside + b"]"
    return re.escape(text)
