"""The kinds of quotas and rates: one row each, and their records in calls. No I/O.

A kind is named here alone: server, tools and web page go through `QUOTAS` or `RATES`. A new kind is a row here with its
field of the records, the field in `dieselfs.thrift`, and where the server counts it: `Amount` in
`dieselfs_server/admission/quotas.py`. A rate of bytes or of requests needs no code: `Rates` charges it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dieselfs.errors import InvalidInput
from dieselfs.units import format_size, parse_rate, parse_size, parse_whole_number

NO_LIMIT = -1
"""Stands in calls for a quota or a rate without a limit."""

Limits = Mapping[str, int]
"""Limits by `LimitKind.name`; what is not limited is left out."""


class QuotaRecord(NamedTuple):
    """The quota of an account: `user:NAME`, `user:*` or `dataset:NAME`."""

    account: str
    stored_bytes: int = NO_LIMIT
    files: int = NO_LIMIT


class RateRecord(NamedTuple):
    """The most that each server moves for a user (`*`: for each other one), and for each job of it."""

    user: str
    bytes_per_s: int = NO_LIMIT
    requests_per_s: int = NO_LIMIT
    job_bytes_per_s: int = NO_LIMIT


class UsageRecord(NamedTuple):
    """What a dataset takes, or (`kind` `user`) all datasets that a user owns. `total_bytes`: of the files;
    `stored_bytes`: of all chunks, also of what was replaced or deleted, until a purge.
    `read_bytes`, `written_bytes`: what all users have moved of the dataset, or the user of all datasets.
    """

    kind: str
    name: str
    owner: str
    files: int
    total_bytes: int
    stored_bytes: int
    quota_bytes: int = NO_LIMIT
    quota_files: int = NO_LIMIT
    read_bytes: int = 0
    written_bytes: int = 0


class LimitKind(NamedTuple):
    """One kind of quota or rate."""

    name: str
    """Its field in records and calls, in the stored table of users, and in the audit log. A `UsageRecord` has under
    this name what counts towards a quota.
    """
    field: str
    """Its field with `--json`, and that of a quota in a `UsageRecord`."""
    option: str
    metavar: str
    help: str
    parse: Callable[[str], int]
    is_bytes: bool
    """Whether it counts bytes; other quotas count files, and other rates requests."""
    suffix: str = ""
    """Follows a number of this kind in messages."""
    least: int = 0
    label: str = ""
    """What a quota limits, on the web page."""
    remedy: str = ""
    """What makes room in a full quota."""
    is_per_job: bool = False
    """Whether each job of a user has this rate for itself."""

    def number(self, number: int, size: Callable[[int], str] = format_size) -> str:
        return size(number) if self.is_bytes else f"{number:,}"

    def text(self, limit: int, size: Callable[[int], str] = format_size) -> str:
        """`20 GiB`, `100 files`, `10 MiB/s for each job`."""
        return self.number(limit, size) + self.suffix


QUOTAS = (
    LimitKind(
        name="stored_bytes",
        field="quota_bytes",
        option="--size",
        metavar="SIZE",
        help="Bytes of all chunks.",
        parse=parse_size,
        is_bytes=True,
        label="bytes of chunks",
        remedy="delete files and purge",
    ),
    LimitKind(
        name="files",
        field="quota_files",
        option="--files",
        metavar="NUMBER",
        help="Number of files.",
        parse=parse_whole_number,
        is_bytes=False,
        suffix=" files",
        label="files",
        remedy="delete files",
    ),
)

RATE_BYTES_PER_S_MIN = 1 << 20
"""With less, a few connections would miss the least rate of bulk bytes."""

RATES = (
    LimitKind(
        name="bytes_per_s",
        field="bytes_per_s",
        option="--rate",
        metavar="RATE",
        help="Bytes per second, both ways together.",
        parse=parse_rate,
        is_bytes=True,
        suffix="/s",
        least=RATE_BYTES_PER_S_MIN,
    ),
    LimitKind(
        name="job_bytes_per_s",
        field="job_bytes_per_s",
        option="--job-rate",
        metavar="RATE",
        help="The same, of each job of the user.",
        parse=parse_rate,
        is_bytes=True,
        suffix="/s for each job",
        least=RATE_BYTES_PER_S_MIN,
        is_per_job=True,
    ),
    LimitKind(
        name="requests_per_s",
        field="requests_per_s",
        option="--requests",
        metavar="N",
        help="Requests per second.",
        parse=parse_whole_number,
        is_bytes=False,
        suffix=" requests/s",
        least=1,
    ),
)


def limits_of(kinds: tuple[LimitKind, ...], record: Any) -> Limits:
    """The limits in a record, or in the arguments of a call."""
    numbers = {kind.name: getattr(record, kind.name) for kind in kinds}
    return {name: number for name, number in numbers.items() if number != NO_LIMIT}


def numbers_of(kinds: tuple[LimitKind, ...], limits: Limits) -> dict[str, int]:
    """The fields of a record with these limits: one for each kind."""
    return {kind.name: limits.get(kind.name, NO_LIMIT) for kind in kinds}


def check_limits(kinds: tuple[LimitKind, ...], limits: Limits) -> None:
    """Raises InvalidInput."""
    for kind in kinds:
        if limits.get(kind.name, kind.least) < kind.least:
            raise InvalidInput(
                f"a limit of {kind.text(limits[kind.name])} is too low: {kind.text(kind.least)} at least"
            )
