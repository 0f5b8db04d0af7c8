"""Shell patterns for paths: `--exclude` and `--include`, and `find --name`. No I/O."""

import os
import re
from collections.abc import Iterable
from fnmatch import translate

from dieselfs.names import split_path


class Patterns:
    """Shell patterns of `--exclude` and `--include`, for paths relative to the source.

    A pattern with a slash is matched with the whole path, any other with the name; `*` matches slashes too. The content
    of an excluded folder is excluded. An include overrides an exclude.
    """

    def __init__(self, excludes: Iterable[str] = (), includes: Iterable[str] = ()) -> None:
        self._excludes = [Pattern(text) for text in excludes]
        self._includes = [Pattern(text) for text in includes]

    def is_wanted(self, path: bytes) -> bool:
        """Whether the entry at `path` is selected. The source itself (the empty path) always is."""
        if not self._excludes or not self._is_excluded(path):
            return True
        return any(pattern.matches(path) for pattern in self._includes)

    def is_pruned(self, path: bytes) -> bool:
        """Whether neither the folder at `path` nor its content is selected."""
        return not self._includes and not self.is_wanted(path)

    def _is_excluded(self, path: bytes) -> bool:
        while path:
            if any(pattern.matches(path) for pattern in self._excludes):
                return True
            path = split_path(path)[0]
        return False


class Pattern:
    """A shell pattern for a path: one with a slash is matched with all of it, any other with its name."""

    def __init__(self, text: str) -> None:
        encoded = os.fsencode(text.strip("/"))
        self._is_whole = b"/" in encoded
        self._expression = re.compile(translate(encoded.decode("latin-1")).encode("latin-1"), re.DOTALL)

    def matches(self, path: bytes) -> bool:
        return self._expression.match(path if self._is_whole else split_path(path)[1]) is not None
