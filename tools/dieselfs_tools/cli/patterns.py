"""Filters of paths, by the rules of rclone: `--include`, `--exclude`, `--filter-from`, and `find --name`. No I/O.

A pattern is matched with the end of a path, from a slash on; with a slash at its begin, with the whole path. `*` and
`?` match within a name, `**` also slashes, `[a-z]` one of these characters, `{a,b}` one of these words, `{{...}}` a
regular expression. A slash at the end matches folders only. What matches a folder matches all its content.
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator

from dieselfs.errors import InvalidInput


class Pattern:
    """One pattern. Raises InvalidInput."""

    def __init__(self, text: str) -> None:
        # Latin-1 has one character for each byte, so a pattern can have names that are not UTF-8.
        glob = os.fsencode(text).decode("latin-1")
        if not glob.strip("/"):
            raise InvalidInput(f"the pattern {text!r} matches nothing: write for example '*.jpg'")
        is_anchored, body = glob.startswith("/"), glob.removeprefix("/")
        self._is_folder = body.endswith(("/", "/**"))
        body = body.removesuffix("/").removesuffix("/**")
        try:
            expression = "".join(_translated(body, text))
            self._itself = _compiled(is_anchored, expression, "")
            self._all = _compiled(is_anchored, expression, "/.*" if self._is_folder else "(?:/.*)?")
        except re.error as error:
            raise InvalidInput(f"the pattern {text!r} is not possible: {error}") from None
        literal = re.match(r"[^*?\[\]{}\\]*", body)
        self._start = literal[0].encode("latin-1") if is_anchored and literal else b""

    def matches(self, path: bytes, is_folder: bool = False) -> bool:
        """Whether it matches this entry. The content of a matched folder does not count."""
        return (is_folder or not self._is_folder) and self._itself.fullmatch(path) is not None

    def covers(self, path: bytes, is_folder: bool = False) -> bool:
        """Whether it matches this entry, or a folder that has it."""
        is_slashed = is_folder and self._is_folder
        return self._all.fullmatch(path + b"/" if is_slashed else path) is not None

    def can_match_below(self, folder: bytes) -> bool:
        """False if it certainly matches nothing below a folder."""
        below = folder + b"/"
        return below.startswith(self._start) or self._start.startswith(below)


class Patterns:
    """Rules for paths relative to the folder that is walked. The first that matches an entry decides; without one, the
    entry is selected.

    They stand in the order of rclone: includes, excludes, then the lines of files; and with an include, everything else
    is excluded at the end.
    """

    def __init__(
        self, excludes: Iterable[str] = (), includes: Iterable[str] = (), lines: Iterable[str] = ()
    ) -> None:
        """`lines`: of `--filter-from`. Raises InvalidInput."""
        included = [(True, Pattern(text)) for text in includes]
        excluded = ((False, Pattern(text)) for text in excludes)
        others = [(False, Pattern("**"))] if included else []
        self._rules = [*included, *excluded, *_rules(lines), *others]

    def __bool__(self) -> bool:
        """Whether there are rules."""
        return bool(self._rules)

    def is_wanted(self, path: bytes, is_folder: bool = False) -> bool:
        """Whether the entry at `path` is selected. The folder that is walked (the empty path) always is."""
        if not self._rules or not path:
            return True
        return next((taken for taken, pattern in self._rules if pattern.covers(path, is_folder)), True)

    def is_pruned(self, path: bytes) -> bool:
        """Whether certainly neither the folder at `path` nor its content is selected."""
        if not self._rules or not path:
            return False
        for is_include, pattern in self._rules:
            if pattern.covers(path, is_folder=True):
                return not is_include
            if is_include and pattern.can_match_below(path):
                return False
        return False


def deletable(
    paths: Iterable[tuple[bytes, bool]], patterns: Patterns, kept: Iterable[bytes] = ()
) -> Iterator[bytes]:
    """The selected ones of (path, is_folder), without folders that have something which is not selected, or is `kept`.

    Takes each folder after its content.
    """
    staying, full = set(kept), set[bytes]()
    for path, is_folder in paths:
        if path not in staying and path not in full and patterns.is_wanted(path, is_folder):
            yield path
        else:
            full.add(path.rpartition(b"/")[0])


def _rules(lines: Iterable[str]) -> Iterator[tuple[bool, Pattern]]:
    """`+ PATTERN`, `- PATTERN`; `!` removes the rules before it; `#` and `;` begin comments."""
    found: list[tuple[bool, Pattern]] = []
    for line in map(str.strip, lines):
        if not line or line[0] in "#;":
            continue
        if line == "!":
            found.clear()
            continue
        sign, _, text = line.partition(" ")
        if sign not in ("+", "-") or not text.strip():
            raise InvalidInput(
                f"the filter rule {line!r} is not known: write '+ PATTERN', '- PATTERN', or '!'"
            )
        found.append((sign == "+", Pattern(text.strip())))
    return iter(found)


def _compiled(is_anchored: bool, expression: str, end: str) -> "re.Pattern[bytes]":
    start = "" if is_anchored else "(?:.*/)?"
    with warnings.catch_warnings():
        # Doubled signs in a set stand for themselves here.
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(f"{start}(?:{expression}){end}".encode("latin-1"), re.DOTALL)


_TOKEN = re.compile(
    r"\{\{(?P<regex>.*?)\}\}|(?P<any>\*\*)|(?P<star>\*)|(?P<one>\?)"
    r"|\[(?P<set>[!^]?\]?[^\]]*)\]|(?P<open>\{)|(?P<close>\})|(?P<comma>,)|\\(?P<plain>.)|(?P<other>.)",
    re.DOTALL,
)


def _translated(glob: str, text: str) -> Iterator[str]:
    """The parts of a regular expression. Raises InvalidInput for braces or brackets without a partner."""
    if "***" in glob:
        raise InvalidInput(
            f"the pattern {text!r} has '***': write '*' within a name, and '**' for any folders"
        )
    depth = 0
    for token in _TOKEN.finditer(glob):
        kind, value = token.lastgroup, token[token.lastgroup or 0]
        depth += (kind == "open") - (kind == "close")
        if depth < 0 or (kind == "other" and value in "[]"):
            raise InvalidInput(f"the pattern {text!r} has a bracket without its partner; write \\ before it")
        if kind == "set":
            is_not = value.startswith(("!", "^"))
            inner = (value[1:] if is_not else value).replace("\\", "\\\\").replace("[", "\\[")
            yield f"[{'^/' if is_not else ''}{inner}]"
        else:
            yield _FIXED.get(kind or "") or (value if kind == "regex" else _between(kind, value, depth))
    if depth:
        raise InvalidInput(f"the pattern {text!r} has a brace without its partner; write \\ before it")


_FIXED = {"any": ".*", "star": "[^/]*", "one": "[^/]", "open": "(?:", "close": ")"}


def _between(kind: str | None, value: str, depth: int) -> str:
    """A comma separates words within braces; all else stands for itself."""
    return "|" if kind == "comma" and depth else re.escape(value)


ALL = Patterns()
"""Selects everything."""
