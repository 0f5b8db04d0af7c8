"""`dlcmd quota`: what datasets and users may store."""

import click

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.rpc.records import NO_LIMIT, QuotaRecord
from dieselfs_tools.cli import options
from dieselfs_tools.cli.limit_list import LimitList
from dieselfs_tools.cli.output import Output
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


def limits_text(output: Output, quota: QuotaRecord) -> str:
    bytes_text = f"at most {output.size(quota.stored_bytes)}" if quota.stored_bytes != NO_LIMIT else ""
    files_text = f"at most {quota.files:,} files" if quota.files != NO_LIMIT else ""
    return ", ".join(filter(None, (bytes_text, files_text))) or "no limit"


def _fields(quota: QuotaRecord) -> dict[str, object]:
    limits = {"quota_bytes": quota.stored_bytes, "quota_files": quota.files}
    return {"account": quota.account, **{k: None if v == NO_LIMIT else v for k, v in limits.items()}}


@options.verb(
    "set",
    "dlcmd quota set dl://imagenet --size 2TiB --files 20000000",
    "dlcmd quota set '*' --size 500GiB      # each user without a quota of its own",
    group=quota,
)
@click.argument("target", metavar="dl://DATASET|USER")
@click.option(
    "--size", "stored_bytes", type=options.SIZE, metavar="SIZE", help="Bytes of all chunks. [no limit]"
)
@click.option("--files", type=click.IntRange(0), metavar="NUMBER", help="Number of files. [no limit]")
@options.dry_run
def set_(session: Session, target: str, stored_bytes: int | None, files: int | None, is_dry_run: bool) -> int:
    """Set the quota of a dataset or of a user, in place of the one before. To a user all datasets count that the user
    owns: those that the user has made.
    """
    if stored_bytes is None and files is None:
        raise InvalidInput(
            "name a limit: --size SIZE, --files NUMBER, or both; 'dlcmd quota rm' removes a quota"
        )
    limits = (NO_LIMIT if limit is None else limit for limit in (stored_bytes, files))
    return _list(session).set(target, QuotaRecord(account_of(target), *limits), is_dry_run)


@options.verb("rm", "dlcmd quota rm dl://imagenet", "dlcmd quota rm anna", group=quota)
@click.argument("target", metavar="dl://DATASET|USER")
@options.dry_run
def rm(session: Session, target: str, is_dry_run: bool) -> int:
    """Remove the quota of a dataset or of a user."""
    return _list(session).remove(target, QuotaRecord(account_of(target)), is_dry_run)


@options.verb("ls", "dlcmd quota ls", "dlcmd quota ls --json", group=quota)
def ls(session: Session) -> int:
    """List all quotas. '*' is that of users without a quota of their own."""
    return _list(session).show(lambda quota: _shown(quota.account))


def _list(session: Session) -> LimitList[QuotaRecord]:
    client = session.client
    return LimitList("quota", session.output, client.quotas, client.set_quota, limits_text, _fields)


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
