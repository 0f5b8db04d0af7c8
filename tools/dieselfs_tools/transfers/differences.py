"""What differs between two trees, for `check` and `diff`. No I/O."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL
from dieselfs.names import printable
from dieselfs.units import count
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.transfers.entries import Entry

ADDED, REMOVED, CHANGED, ATTRIBUTES = "added", "removed", "changed", "attributes"
MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "*", ATTRIBUTES: "~"}
"""The same as those of rclone, and one for equal content with another mode or time."""

_COLOURS = {ADDED: "green", REMOVED: "red", CHANGED: "yellow", ATTRIBUTES: "cyan"}


class Difference(NamedTuple):
    """`entry`: of the second tree, unless it is only in the first."""

    change: str
    entry: Entry


def differences(
    first: Mapping[bytes, Entry], second: Mapping[bytes, Entry], has_same_content: Callable[[bytes], bool]
) -> Iterator[Difference]:
    """In the order of paths. `has_same_content(path)` is called for files of equal size. The time of a folder does not
    count: it changes with its content.
    """
    for path in sorted(first.keys() | second.keys()):
        old, new = first.get(path), second.get(path)
        if old is None or new is None:
            only = new or old
            assert only is not None
            yield Difference(REMOVED if new is None else ADDED, only)
        elif (old.type, old.target) != (new.type, new.target) or not _is_same_file(
            old, new, has_same_content
        ):
            yield Difference(CHANGED, new)
        elif old.mode != new.mode or (not old.is_folder and old.mtime_ns != new.mtime_ns):
            yield Difference(ATTRIBUTES, new)


def _is_same_file(old: Entry, new: Entry, has_same_content: Callable[[bytes], bool]) -> bool:
    return old.type != "file" or (old.size == new.size and has_same_content(old.path))


def print_differences(
    output: Output, found: Iterable[Difference], entries: int, failures: Sequence[tuple[str, str]] = ()
) -> int:
    """Print one line for each, and the summary; returns the exit code. `entries`: of the first tree. `failures`: the
    entries that could not be compared, complete at the end of `found`.
    """
    counts: Counter[str] = Counter()
    for change, entry in found:
        counts[change] += 1
        text = f"{MARKS[change]} {printable(entry.path)}{'/' if entry.is_folder else ''}"
        text = output.coloured(text, _COLOURS[change])
        output.record("difference", text, {"change": change, **name_fields(entry.path), "kind": entry.type})
    total = counts.total()
    output.failures([*failures], len(failures))
    text = "" if failures else f"no differences in {count(entries, 'entry')}"
    if total:
        parts = ", ".join(f"{counts[change]:,} {change}" for change in MARKS if counts[change])
        output.error(f"{count(total, 'difference')}: {parts}")
        text = ""
    fields = {"entries": entries, **{change: counts[change] for change in MARKS}, "failed": len(failures)}
    return output.summary(text, fields, EXIT_PARTIAL if total or failures else EXIT_OK)
