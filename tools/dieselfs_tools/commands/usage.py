"""`dlcmd usage`: what datasets and users store, beside their quotas, and what they have read and written."""

from collections.abc import Sequence

import click

from dieselfs.rpc.limit_kinds import NO_LIMIT, QUOTAS, LimitKind, UsageRecord
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import SIZE_COLUMNS

HEADING = " ".join(
    [
        *(f"{word:>{SIZE_COLUMNS}}" for word in ("size", "stored", "read", "written")),
        f"{'files':>12}  dataset or user",
    ]
)


@options.verb(
    "usage",
    "dlcmd usage",
    "dlcmd usage --by user --json",
)
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
