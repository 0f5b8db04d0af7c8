"""The verbs for what users and datasets store and transfer, and may: `quota`, `limit` and `usage`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.rpc.limit_kinds import (
    NO_LIMIT,
    QUOTAS,
    RATES,
    LimitKind,
    QuotaRecord,
    RateRecord,
    UsageRecord,
    limits_of,
    numbers_of,
)
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session
from dieselfs_tools.commands.accounts import check_users
from dieselfs_tools.transfers.entries import SIZE_COLUMNS

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


_USER, _DATASET, _SCHEME = "user:", "dataset:", "dl://"

quota = options.verb_group(
    "quota",
    "Limit what datasets and users may store (administrators). 'dlcmd usage' shows what they store.",
    "dlcmd quota set dl://imagenet --size 2TiB",
    "dlcmd quota ls",
)


def account_of(target: str) -> str:
    """The account of `dl://DATASET`, of a user, or of `*`. Raises InvalidInput."""
    return _DATASET + options.dataset_name(target) if target.startswith(_SCHEME) else _USER + target


def _shown(account: str) -> str:
    return account.replace(_DATASET, _SCHEME, 1).removeprefix(_USER)


@options.verb(
    "set",
    "dlcmd quota set dl://imagenet --size 2TiB --files 20000000",
    "dlcmd quota set '*' --size 500GiB      # each user without a quota of its own",
    group=quota,
)
@click.argument("target", metavar="dl://DATASET|USER")
@limit_options(QUOTAS)
@options.dry_run
def quota_set(session: Session, target: str, is_dry_run: bool, **limits: int | None) -> int:
    """Set the quota of a dataset or of a user, in place of the one before. To a user all datasets count that the user
    owns: those that the user has made.
    """
    return _quotas(session).set(target, account_of(target), limits, is_dry_run)


@options.verb("rm", "dlcmd quota rm dl://imagenet", "dlcmd quota rm anna", group=quota)
@click.argument("target", metavar="dl://DATASET|USER")
@options.dry_run
def quota_rm(session: Session, target: str, is_dry_run: bool) -> int:
    """Remove the quota of a dataset or of a user."""
    return _quotas(session).remove(target, account_of(target), is_dry_run)


@options.verb("ls", "dlcmd quota ls", "dlcmd quota ls --json", group=quota)
def quota_ls(session: Session) -> int:
    """List all quotas. '*' is that of users without a quota of their own."""
    return _quotas(session).show(_shown)


def _quotas(session: Session) -> LimitList[QuotaRecord]:
    client = session.client
    return LimitList(
        "quota", session.output, QUOTAS, QuotaRecord, client.quotas, client.set_quota, "at most "
    )


@options.verb(
    "owner",
    "dlcmd quota owner dl://imagenet anna",
    "dlcmd quota owner dl://imagenet        # nobody: it counts to the quota of no user",
    group=quota,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("user", default="", metavar="[USER]")
@options.dry_run
def owner(session: Session, dataset: str, user: str, is_dry_run: bool) -> int:
    """Let a dataset count to the quota of a user, or of nobody. Rights do not change."""
    fields = {"dataset": dataset, "owner": user, "dry_run": is_dry_run}
    payer = user or "nobody"
    if is_dry_run:
        check_users(session, [user] if user else [])
        return session.output.summary(f"would let {dataset} count to the quota of {payer}", fields)
    session.client.set_owner(dataset, user)
    return session.output.summary(f"{dataset} counts to the quota of {payer}", fields)


limit = options.verb_group(
    "limit",
    "Limit the rates of users and of their jobs (administrators). Who is limited gets slower; nothing fails.",
    "dlcmd limit set anna --rate 500MiB/s",
    "dlcmd limit ls",
)


@options.verb(
    "set",
    "dlcmd limit set anna --rate 500MiB/s --job-rate 200MiB/s",
    "dlcmd limit set '*' --requests 2000      # each user without a limit of its own",
    group=limit,
)
@click.argument("user", metavar="USER")
@limit_options(RATES)
@options.dry_run
def limit_set(session: Session, user: str, is_dry_run: bool, **limits: int | None) -> int:
    """Set the rates that each server gives a user, in place of those before."""
    return _rates(session).set(user, user, limits, is_dry_run)


@options.verb("rm", "dlcmd limit rm anna", "dlcmd limit rm '*'", group=limit)
@click.argument("user", metavar="USER")
@options.dry_run
def limit_rm(session: Session, user: str, is_dry_run: bool) -> int:
    """Remove the limit of a user."""
    return _rates(session).remove(user, user, is_dry_run)


@options.verb("ls", "dlcmd limit ls", "dlcmd limit ls --json", group=limit)
def limit_ls(session: Session) -> int:
    """List all limits. '*' is that of users without a limit of their own."""
    return _rates(session).show()


def _rates(session: Session) -> LimitList[RateRecord]:
    client = session.client
    return LimitList("limit", session.output, RATES, RateRecord, client.rates, client.set_rate)


HEADING = " ".join(
    [
        *(f"{word:>{SIZE_COLUMNS}}" for word in ("size", "stored", "read", "written")),
        f"{'files':>12}  dataset or user",
    ]
)


@options.verb("usage", "dlcmd usage", "dlcmd usage --by user --json")
@click.argument("datasets", nargs=-1, type=options.DATASET, metavar="[dl://DATASET]...")
@click.option(
    "--by",
    type=click.Choice(("dataset", "user")),
    default="dataset",
    show_default=True,
    help="One line for each dataset, or for each owner.",
)
@options.human
def usage(session: Session, datasets: Sequence[str], by: str) -> int:
    """Show the bytes of files, the bytes of all chunks, the number of files, the bytes that servers have sent and
    received, and the quotas. Chunks also have what was replaced or deleted, until a purge.

    Users see the datasets that they may read, and themselves; administrators see all.
    """
    found = [one for name in datasets or ("",) for one in session.client.usage(name)]
    shown = [one for one in found if one.kind == by] if not datasets else found
    if shown:
        session.output.heading(HEADING)
    for one in shown:
        session.output.record("usage", _text(session.output, one), usage_fields(one))
    fields = {
        "bytes": sum(one.total_bytes for one in shown),
        "stored_bytes": sum(one.stored_bytes for one in shown),
        "files": sum(one.files for one in shown),
        "read_bytes": sum(one.read_bytes for one in shown),
        "written_bytes": sum(one.written_bytes for one in shown),
    }
    return session.output.summary("", fields)


def _limits(one: UsageRecord) -> dict[LimitKind, int]:
    limits = {kind: getattr(one, kind.field) for kind in QUOTAS}
    return {kind: limit for kind, limit in limits.items() if limit != NO_LIMIT}


def usage_fields(one: UsageRecord) -> dict[str, object]:
    return {
        "kind": one.kind,
        "name": one.name,
        "owner": one.owner,
        "files": one.files,
        "bytes": one.total_bytes,
        "stored_bytes": one.stored_bytes,
        **{kind.field: _limits(one).get(kind) for kind in QUOTAS},
        "read_bytes": one.read_bytes,
        "written_bytes": one.written_bytes,
    }


def quota_text(output: Output, one: UsageRecord) -> str:
    """`12 GiB of 20 GiB, 5 of 100 files`, or empty."""
    return ", ".join(
        f"{kind.number(getattr(one, kind.name), output.size)} of {kind.text(limit, output.size)}"
        for kind, limit in _limits(one).items()
    )


def _text(output: Output, one: UsageRecord) -> str:
    sizes = (one.total_bytes, one.stored_bytes, one.read_bytes, one.written_bytes)
    columns = " ".join(f"{output.size(size_bytes):>{SIZE_COLUMNS}}" for size_bytes in sizes)
    name = f"dl://{one.name}" if one.kind == "dataset" else one.name
    owner = f"  of {one.owner}" if one.owner else ""
    limits = quota_text(output, one)
    quota = f"  (quota: {limits})" if limits else ""
    return f"{columns} {one.files:>12,}  {name}{owner}{quota}"
