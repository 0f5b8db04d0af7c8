"""Options, texts and verbs for the quotas, or the rates, that administrators set. This module calls the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.rpc.limit_kinds import LimitKind, QuotaRecord, RateRecord, limits_of, numbers_of
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output

Record = TypeVar("Record", QuotaRecord, RateRecord)


def limit_options(kinds: tuple[LimitKind, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for each kind, which the function gets by the kind's name; None if it is not given."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            parsed = options.Parsed(kind.metavar, kind.parse)
            function = click.option(kind.option, kind.name, type=parsed, help=f"{kind.help} [no limit]")(
                function
            )
        return function

    return decorated


@dataclass(frozen=True, slots=True)
class LimitList(Generic[Record]):
    """`noun`: the word for one record. `listed` and `put` call the server; a record without limits removes what was
    put. The first field of a record names its user or account. `prefix` comes before each limit in messages.
    """

    noun: str
    output: Output
    kinds: tuple[LimitKind, ...]
    record: Callable[..., Record]
    listed: Callable[[], Sequence[Record]]
    put: Callable[[Record], None]
    prefix: str = ""

    def set(self, target: str, name: str, limits: dict[str, int | None], is_dry_run: bool) -> int:
        """Set the limits of `name`, which the user wrote as `target`. Raises InvalidInput without any limit."""
        given = {kind: limit for kind, limit in limits.items() if limit is not None}
        if not given:
            ways = ", ".join(f"{kind.option} {kind.metavar}" for kind in self.kinds)
            raise InvalidInput(f"name a limit: {ways}; 'dlcmd {self.noun} rm' removes a {self.noun}")
        wanted = self.record(name, **numbers_of(self.kinds, given))
        if is_dry_run:
            self.listed()  # raises AccessDenied without the right
        else:
            self.put(wanted)
        text = f"{target}: {self._text(wanted)}"
        return self._done(f"would set {text}" if is_dry_run else text, wanted, is_dry_run)

    def remove(self, target: str, name: str, is_dry_run: bool) -> int:
        """Raises NotFound."""
        if all(known[0] != name for known in self.listed()):
            raise NotFound(f"{target} has no {self.noun}")
        without = self.record(name)
        if not is_dry_run:
            self.put(without)
        verb = "would remove" if is_dry_run else "removed"
        return self._done(f"{verb} the {self.noun} of {target}", without, is_dry_run)

    def show(self, shown: Callable[[str], str] = str) -> int:
        """`shown`: a name as users write it."""
        found = self.listed()
        for one in found:
            self.output.record(self.noun, f"{shown(one[0])}: {self._text(one)}", self._json(one))
        nouns = f"{self.noun}s"
        return self.output.summary("" if found else f"there are no {nouns}", {nouns: len(found)})

    def _done(self, text: str, record: Record, is_dry_run: bool) -> int:
        return self.output.summary(text, {**self._json(record), "dry_run": is_dry_run})

    def _text(self, record: Record) -> str:
        limits = limits_of(self.kinds, record)
        texts = [
            self.prefix + kind.text(limits[kind.name], self.output.size)
            for kind in self.kinds
            if kind.name in limits
        ]
        return ", ".join(texts) or "no limit"

    def _json(self, record: Record) -> dict[str, object]:
        limits = limits_of(self.kinds, record)
        return {record._fields[0]: record[0], **{kind.field: limits.get(kind.name) for kind in self.kinds}}
