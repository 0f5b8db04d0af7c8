"""`dlcmd limit`: rates of users and of their jobs."""

import click

from dieselfs.errors import InvalidInput
from dieselfs.rpc.records import NO_LIMIT, RateRecord
from dieselfs.units import parse_rate
from dieselfs_tools.cli import options
from dieselfs_tools.cli.limit_list import LimitList
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

RATE = options.Parsed("RATE", parse_rate)

limit = options.verb_group(
    "limit",
    "Limit the rates of users and of their jobs (administrators). Who is limited gets slower; nothing fails.",
    "dlcmd limit set anna --rate 500MiB/s",
    "dlcmd limit ls",
)


def _text(output: Output, rate: RateRecord) -> str:
    parts = []
    if rate.bytes_per_s != NO_LIMIT:
        parts.append(f"{output.size(rate.bytes_per_s)}/s")
    if rate.job_bytes_per_s != NO_LIMIT:
        parts.append(f"{output.size(rate.job_bytes_per_s)}/s for each job")
    if rate.requests_per_s != NO_LIMIT:
        parts.append(f"{rate.requests_per_s:,} requests/s")
    return ", ".join(parts) or "no limit"


def _fields(rate: RateRecord) -> dict[str, object]:
    return {name: None if value == NO_LIMIT else value for name, value in rate._asdict().items()}


@options.verb(
    "set",
    "dlcmd limit set anna --rate 500MiB/s --job-rate 200MiB/s",
    "dlcmd limit set '*' --requests 2000      # each user without a limit of its own",
    group=limit,
)
@click.argument("user", metavar="USER")
@click.option("--rate", "bytes_per_s", type=RATE, help="Bytes per second, both ways together. [no limit]")
@click.option(
    "--job-rate", "job_bytes_per_s", type=RATE, help="The same, of each job of the user. [no limit]"
)
@click.option(
    "--requests",
    "requests_per_s",
    type=click.IntRange(1),
    metavar="N",
    help="Requests per second. [no limit]",
)
@options.dry_run
def set_(
    session: Session,
    user: str,
    bytes_per_s: int | None,
    job_bytes_per_s: int | None,
    requests_per_s: int | None,
    is_dry_run: bool,
) -> int:
    """Set the rates that each server gives a user, in place of those before."""
    given = (bytes_per_s, requests_per_s, job_bytes_per_s)
    if all(one is None for one in given):
        raise InvalidInput("name a rate: --rate, --job-rate or --requests; 'dlcmd limit rm' removes a limit")
    rate = RateRecord(user, *(NO_LIMIT if one is None else one for one in given))
    return _list(session).set(user, rate, is_dry_run)


@options.verb("rm", "dlcmd limit rm anna", "dlcmd limit rm '*'", group=limit)
@click.argument("user", metavar="USER")
@options.dry_run
def rm(session: Session, user: str, is_dry_run: bool) -> int:
    """Remove the limit of a user."""
    return _list(session).remove(user, RateRecord(user), is_dry_run)


@options.verb("ls", "dlcmd limit ls", "dlcmd limit ls --json", group=limit)
def ls(session: Session) -> int:
    """List all limits. '*' is that of users without a limit of their own."""
    return _list(session).show(lambda rate: rate.user)


def _list(session: Session) -> LimitList[RateRecord]:
    client = session.client
    return LimitList("limit", session.output, client.rates, client.set_rate, _text, _fields)
