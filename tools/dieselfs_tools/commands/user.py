"""`dlcmd user`: who may use a server, and what they may do."""

import os
import time
from contextlib import suppress

import click

from dieselfs.errors import EXIT_OK, AlreadyExists, DieselfsError, NotFound
from dieselfs.rpc.auth import Key, check_user_name
from dieselfs_tools import options
from dieselfs_tools.session import Session
from dieselfs_tools.units import format_time

ALL_DATASETS = "*"
RIGHTS = ("read", "write", "admin", "none")


@click.group(
    cls=options.VerbGroup,
    epilog=options.examples(
        "dlcmd user add anna --out anna.key",
        "dlcmd user grant anna imagenet read",
    ),
)
def user() -> None:
    """Users of a server, their keys and their rights (for administrators)."""


@options.verb(
    "add",
    "dlcmd user add anna --out anna.key           # a private file; give it to anna",
    "dlcmd user add ci --expires 30d > ci.key     # to standard output: see that others cannot read it",
)
@click.argument("name", metavar="NAME")
@click.option(
    "--out", metavar="FILE", help="Write the key to FILE, which must not exist, for your eyes only."
)
@click.option(
    "--expires", "lifetime_s", type=options.DURATION, default=0, help="How long the key is valid. [for ever]"
)
@options.dry_run
def add(session: Session, name: str, out: str | None, lifetime_s: int, is_dry_run: bool) -> int:
    """Make a key for a user, who is made if need be. The key is shown only now.

    A user may have several keys at once, so that one can be changed for another without a gap.
    """
    check_user_name(name)
    fields: dict[str, object] = {"user": name, "out": out}
    if is_dry_run:
        session.client.users()  # whether we may
        return session.output.summary(f"would make a key for {name}", {"dry_run": True, **fields})
    expires_s = int(time.time()) + lifetime_s if lifetime_s else 0
    if out is None:
        text = session.client.add_key(name, expires_s)
        session.output.record("key", text.rstrip("\n"), {"user": name, "key": text})
        return session.output.summary("", {**fields, "key_id": Key.parse(text, "the server").key_id})
    key = _write_key(session, name, out, expires_s)
    return session.output.summary(
        f"the key {key.key_id} of {name} is in {out}", {**fields, "key_id": key.key_id}
    )


def _write_key(session: Session, name: str, out: str, expires_s: int) -> Key:
    """Make the file first: a key that nobody can keep is not made."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise AlreadyExists(
            f"{out} exists; a key is never written over another: choose another name"
        ) from None
    except OSError as error:
        raise DieselfsError(f"{out}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            text = session.client.add_key(name, expires_s)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(out)
        raise
    return Key.parse(text, out)


@options.verb(
    "rm",
    "dlcmd user rm anna                  # the user, with all keys and rights",
    "dlcmd user rm anna --key 1f0c22ab   # one key; 'dlcmd user ls' shows which there are",
)
@click.argument("name", metavar="NAME")
@click.option("--key", "key_id", default="", metavar="ID", help="Only this key.")
@options.dry_run
def rm(session: Session, name: str, key_id: str, is_dry_run: bool) -> int:
    """Remove a user, or one key of a user. In effect at all servers within seconds."""
    what = f"key {key_id} of user {name}" if key_id else f"user {name}"
    fields = {"user": name, "key_id": key_id, "dry_run": is_dry_run}
    if is_dry_run:
        found = next((known for known in session.client.users() if known.name == name), None)
        if found is None or (key_id and all(key.key_id != key_id for key in found.keys)):
            raise NotFound(f"there is no {what}")
        return session.output.summary(f"would remove {what}", fields)
    session.client.remove_key(name, key_id)
    return session.output.summary(f"removed {what}", fields)


@options.verb(
    "ls",
    "dlcmd user ls",
    "dlcmd user ls --json",
)
def ls(session: Session) -> int:
    """List users with their keys and rights."""
    users = session.client.users()
    for one in users:
        lines = [one.name]
        for key in one.keys:
            until = f"until {format_time(key.expires_s)}" if key.expires_s else "for ever"
            lines.append(f"  key {key.key_id}, made {format_time(key.created_s)}, valid {until}")
        lines += [f"  may {right} {dataset}" for dataset, right in sorted(one.grants.items())]
        fields = {
            "user": one.name,
            "keys": [
                {"key_id": key.key_id, "created_s": key.created_s, "expires_s": key.expires_s}
                for key in one.keys
            ],
            "grants": one.grants,
        }
        session.output.record("user", "\n".join(lines), fields)
    return session.output.summary("" if users else "there are no users", {"users": len(users)}, EXIT_OK)


@options.verb(
    "grant",
    "dlcmd user grant anna imagenet read",
    "dlcmd user grant anna '*' admin       # everything, users as well",
)
@click.argument("name", metavar="NAME")
@click.argument("dataset", metavar="DATASET")
@click.argument("right", type=click.Choice(RIGHTS))
@options.dry_run
def grant(session: Session, name: str, dataset: str, right: str, is_dry_run: bool) -> int:
    """Say what a user may do with a dataset ('*' for all). Each right has those before it in it: read, write, admin."""
    chosen = dataset if dataset == ALL_DATASETS else options.dataset_name(dataset)
    fields = {"user": name, "dataset": chosen, "right": right, "dry_run": is_dry_run}
    if is_dry_run:
        if all(known.name != name for known in session.client.users()):
            raise NotFound(f"there is no user {name}")
        return session.output.summary(f"would let {name} {right} {chosen}", fields)
    session.client.grant(name, chosen, right)
    can = f"may {right}" if right != "none" else "has no right on"
    return session.output.summary(f"{name} {can} {chosen}", fields)


for subverb in (add, rm, ls, grant):
    user.add_command(subverb)
