"""`dlcmd limit`: rates of users and of their jobs."""

import click

from dieselfs.rpc.limit_kinds import RATES, RateRecord
from dieselfs_tools.cli import options
from dieselfs_tools.cli.limit_list import LimitList, limit_options
from dieselfs_tools.cli.session import Session

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
def set_(session: Session, user: str, is_dry_run: bool, **limits: int | None) -> int:
    """Set the rates that each server gives a user, in place of those before."""
    return _list(session).set(user, user, limits, is_dry_run)


@options.verb("rm", "dlcmd limit rm anna", "dlcmd limit rm '*'", group=limit)
@click.argument("user", metavar="USER")
@options.dry_run
def rm(session: Session, user: str, is_dry_run: bool) -> int:
    """Remove the limit of a user."""
    return _list(session).remove(user, user, is_dry_run)


@options.verb("ls", "dlcmd limit ls", "dlcmd limit ls --json", group=limit)
def ls(session: Session) -> int:
    """List all limits. '*' is that of users without a limit of their own."""
    return _list(session).show()


def _list(session: Session) -> LimitList[RateRecord]:
    client = session.client
    return LimitList("limit", session.output, RATES, RateRecord, client.rates, client.set_rate)
