"""`dlcmd quota`: what datasets and users may store."""

import click

from dieselfs.errors import NotFound
from dieselfs.rpc.limit_kinds import QUOTAS, QuotaRecord
from dieselfs_tools.cli import options
from dieselfs_tools.cli.limit_list import LimitList, limit_options
from dieselfs_tools.cli.session import Session

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
def set_(session: Session, target: str, is_dry_run: bool, **limits: int | None) -> int:
    """Set the quota of a dataset or of a user, in place of the one before. To a user all datasets count that the user
    owns: those that the user has made.
    """
    return _list(session).set(target, account_of(target), limits, is_dry_run)


@options.verb("rm", "dlcmd quota rm dl://imagenet", "dlcmd quota rm anna", group=quota)
@click.argument("target", metavar="dl://DATASET|USER")
@options.dry_run
def rm(session: Session, target: str, is_dry_run: bool) -> int:
    """Remove the quota of a dataset or of a user."""
    return _list(session).remove(target, account_of(target), is_dry_run)


@options.verb("ls", "dlcmd quota ls", "dlcmd quota ls --json", group=quota)
def ls(session: Session) -> int:
    """List all quotas. '*' is that of users without a quota of their own."""
    return _list(session).show(_shown)


def _list(session: Session) -> LimitList[QuotaRecord]:
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
        if user and all(known.name != user for known in session.client.users()):
            raise NotFound(f"there is no user {user}")
        return session.output.summary(f"would let {dataset} count to the quota of {payer}", fields)
    session.client.set_owner(dataset, user)
    return session.output.summary(f"{dataset} counts to the quota of {payer}", fields)
