"""The names of shares in `.dieselfs/shuffle/`: `seed=1,epoch=0,group=100,rank=0,world=8`. No I/O."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from dieselfs.cluster.node_list import node_list, parse_node_list
from dieselfs.errors import InvalidInput
from dieselfs.names import printable, user_path
from dieselfs.shuffle.assignment import LOCAL_GROUP_CHUNKS
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec

_NUMBER = re.compile(r"[0-9]{1,20}")
_RANGE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class ShareName:
    """The share that a name selects. `parse` reads these keys, in any order, all with defaults:

    - `folder`: only the files below it; as in URLs, `%2F` is a slash, `%2C` a comma
    - `seed`, `epoch`, `group`, `policy`: the order; `skip`: positions to leave out
    - `rank`, `world`, `batch`, `start`, `worker`, `workers`, `drop_last`: the part of a reader, as in `ReaderSpec`
    - `nodes`: a local assignment among these nodes, as `node_list` writes them, with `+` in place of commas
    - `cursor`: the order and the start, instead of the keys for them
    - `null`: each path ends with a NUL byte, not with a newline
    - `log`: of an opportunistic order, its log instead of paths
    """

    plan: PlanSpec
    reader: ReaderSpec
    is_null: bool = False
    cursor: Cursor | None = None
    """As given, to be checked against the snapshot; `plan` and `reader.start` are taken from it."""
    is_log: bool = False

    @classmethod
    def parse(cls, name: bytes) -> "ShareName":
        """Each key at most once. Raises InvalidInput, which names the invalid part."""
        values: dict[str, Any] = {}
        for part in printable(name).split(","):
            key, is_assigned, text = part.partition("=")
            parse = _PARSERS.get(key)
            if parse is None or not is_assigned:
                raise InvalidInput(
                    f"{part!r} is not a KEY=VALUE of a shuffle; the keys are {', '.join(_PARSERS)}"
                )
            if key in values:
                raise InvalidInput(f"{key} is given twice")
            try:
                values[key] = parse(text)
            except ValueError as error:
                raise InvalidInput(f"{part}: {error}") from None
        cursor = values.pop("cursor", None)
        if cursor is not None and (doubled := values.keys() & _IN_CURSOR):
            raise InvalidInput(
                f"the cursor already contains {', '.join(sorted(doubled))}: leave out these keys"
            )
        if values.get("nodes") and cursor is None:
            values.setdefault("group", LOCAL_GROUP_CHUNKS)
        plan = {field: values.pop(key) for key, field in _PLAN_FIELDS.items() if key in values}
        is_null, is_log = values.pop("null", False), values.pop("log", False)
        if cursor is None:
            return cls(PlanSpec(**plan), ReaderSpec(**values), is_null, is_log=is_log)
        reader = ReaderSpec(start=cursor.position, **values)
        return cls(replace(cursor.spec, **plan), reader, is_null, cursor, is_log)

    @classmethod
    def of(cls, share: Share) -> "ShareName":
        """The name of a share: its plan as a cursor, its paths with NUL bytes, so that any path can be written. A list
        has no cursor, but the spec that it was made of.
        """
        cursor = share.plan.cursor(share.start) if share.plan.has_cursors else None
        return cls(share.plan.spec, share.reader, True, cursor)

    def share(self, plan_of: Callable[[PlanSpec], Plan]) -> Share:
        """The share of the plan that `plan_of` makes. Raises InvalidInput if the cursor is of another plan."""
        plan = plan_of(self.plan)
        if self.cursor is not None:
            plan.check_cursor(self.cursor)
        return Share(plan, self.reader)

    def __str__(self) -> str:
        """The text of a name. A mount takes at most 255 characters."""
        plan, reader = self.plan, self.reader
        order = {
            "seed": plan.seed,
            "epoch": plan.epoch,
            "group": "" if plan.group_chunks is None else plan.group_chunks,
            "skip": "+".join(f"{one.start}-{one.stop - 1}" for one in plan.skips.ranges),
            "policy": plan.policy,
            "start": reader.start,
        }
        keys = {
            **(order if self.cursor is None else {"cursor": self.cursor}),
            "folder": quote(plan.folder, safe=""),
            "rank": reader.rank,
            "world": reader.world,
            "batch": reader.batch or reader.world,
            "worker": reader.worker if reader.workers > 1 else "",
            "workers": reader.workers if reader.workers > 1 else "",
            "drop_last": int(reader.drop_last),
            "nodes": node_list(reader.nodes).replace(",", "+"),
            "null": int(self.is_null),
            "log": int(self.is_log) or "",
        }
        return ",".join(f"{key}={value}" for key, value in keys.items() if value != "")


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("write a number, in digits")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("write 0 or 1")
    return text == "1"


def _folder(text: str) -> bytes:
    return user_path(unquote_to_bytes(text))


def _skips(text: str) -> Skips:
    ranges = [_RANGE.fullmatch(part) for part in text.split("+")]
    if None in ranges:
        raise ValueError("write the first and the last position to skip, as 100-199 or 100-199+300-399")
    return Skips(range(int(found[1]), int(found[2]) + 1) for found in ranges if found)


def _nodes(text: str) -> tuple[str, ...]:
    return parse_node_list(text.replace("+", ","))


_PARSERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("seed", "epoch", "group", "rank", "world", "batch", "start", "worker", "workers"), _number
    ),
    "folder": _folder,
    "skip": _skips,
    "policy": str,
    "drop_last": _switch,
    "nodes": _nodes,
    "cursor": Cursor.parse,
    "null": _switch,
    "log": _switch,
}
_PLAN_FIELDS = {
    "seed": "seed",
    "epoch": "epoch",
    "group": "group_chunks",
    "skip": "skips",
    "folder": "folder",
    "policy": "policy",
}
"""The field of `PlanSpec` for each key that has one. Others but `cursor`, `null` and `log` are of `ReaderSpec`."""
_IN_CURSOR = _PLAN_FIELDS.keys() - {"folder"} | {"start"}
