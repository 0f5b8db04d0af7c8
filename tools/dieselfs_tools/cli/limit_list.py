"""The list of quotas, or of rates, that administrators set, remove and show. This module calls the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dieselfs.errors import NotFound
from dieselfs.rpc.records import QuotaRecord, RateRecord
from dieselfs_tools.cli.output import Output

Record = TypeVar("Record", QuotaRecord, RateRecord)


@dataclass(frozen=True, slots=True)
class LimitList(Generic[Record]):
    """`noun`: the word for one record. `listed` and `put` call the server; a record without limits removes what was
    put.

    `text` and `fields` are what users and programs read of a record. Its first field names its user or dataset.
    """

    noun: str
    output: Output
    listed: Callable[[], Sequence[Record]]
    put: Callable[[Record], None]
    text: Callable[[Output, Record], str]
    fields: Callable[[Record], dict[str, object]]

    def set(self, target: str, wanted: Record, is_dry_run: bool) -> int:
        """`target`: as the user wrote it."""
        if is_dry_run:
            self.listed()  # raises AccessDenied without the right
        else:
            self.put(wanted)
        text = f"{target}: {self.text(self.output, wanted)}"
        return self._done(f"would set {text}" if is_dry_run else text, wanted, is_dry_run)

    def remove(self, target: str, without: Record, is_dry_run: bool) -> int:
        """Raises NotFound."""
        if all(known[0] != without[0] for known in self.listed()):
            raise NotFound(f"{target} has no {self.noun}")
        if not is_dry_run:
            self.put(without)
        verb = "would remove" if is_dry_run else "removed"
        return self._done(f"{verb} the {self.noun} of {target}", without, is_dry_run)

    def _done(self, text: str, record: Record, is_dry_run: bool) -> int:
        return self.output.summary(text, {**self.fields(record), "dry_run": is_dry_run})

    def show(self, name: Callable[[Record], str]) -> int:
        """`name`: for what a record is, as users write it."""
        found = self.listed()
        for one in found:
            self.output.record(self.noun, f"{name(one)}: {self.text(self.output, one)}", self.fields(one))
        nouns = f"{self.noun}s"
        return self.output.summary("" if found else f"there are no {nouns}", {nouns: len(found)})
