"""`dlcmd user`: users of a server, their keys and rights. This module writes key files."""

import os
import time
from contextlib import suppress
from dataclasses import asdict

import click

from dieselfs.errors import AlreadyExists, DieselfsError, NotFound
from dieselfs.rpc.auth import Key, check_user_name
from dieselfs.units import format_time
from dieselfs_tools import options
from dieselfs_tools.session import Session

ALL_DATASETS = "*"
RIGHTS = ("read", "write", "admin", "none")


user = options.verb_group(
    "user",
    "Manage the users of a server, their keys and their rights (administrators).",
    "dlcmd user add anna --out anna.key",
    "dlcmd user grant anna imagenet read",
)


@options.verb(
    "add",
    "dlcmd user add anna --out anna.key           # a private file; give it to anna",
    "dlcmd user add ci --expires 30d > ci.key     # standard output; protect the file from other users",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.option("--out", metavar="FILE", help="Write the key to FILE, a new file with mode 0600.")
@click.option(
    "--expires", "lifetime_s", type=options.DURATION, default=0, help="Lifetime of the key. [no limit]"
)
@options.dry_run
def add(session: Session, name: str, out: str | None, lifetime_s: float, is_dry_run: bool) -> int:
    """Make a key for a user; a user that does not exist is created. The key is shown only once.

    A user may have several keys, so that a key can be replaced without an interruption.
    """
    check_user_name(name)
    fields: dict[str, object] = {"user": name, "out": out}
    if is_dry_run:
        session.client.users()  # raises AccessDenied without the right
        return session.output.summary(f"would make a key for {name}", {"dry_run": True, **fields})
    expires_s = int(time.time() + lifetime_s) if lifetime_s else 0
    if out is None:
        text = session.client.add_key(name, expires_s)
        session.output.record("key", text.rstrip("\n"), {"user": name, "key": text})
        return session.output.summary("", {**fields, "key_id": Key.parse(text, "the server").key_id})
    key = _write_key(session, name, out, expires_s)
    return session.output.summary(
        f"the key {key.key_id} of {name} is in {out}", {**fields, "key_id": key.key_id}
    )


def _write_key(session: Session, name: str, out: str, expires_s: int) -> Key:
    """The file is made before the key, so that no key is lost."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise AlreadyExists(f"{out} exists, and keys replace no files: choose another name") from None
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
    "dlcmd user rm anna --key 1f0c22ab   # one key; 'dlcmd user ls' lists them",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.option("--key", "key_id", default="", metavar="ID", help="Remove only this key.")
@options.dry_run
def rm(session: Session, name: str, key_id: str, is_dry_run: bool) -> int:
    """Remove a user, or one key of a user. All servers apply it within seconds."""
    what = f"key {key_id} of user {name}" if key_id else f"user {name}"
    fields = {"user": name, "key_id": key_id, "dry_run": is_dry_run}
    if is_dry_run:
        found = next((known for known in session.client.users() if known.name == name), None)
        if found is None or (key_id and all(key.key_id != key_id for key in found.keys)):
            raise NotFound(f"there is no {what}")
        return session.output.summary(f"would remove {what}", fields)
    session.client.remove_key(name, key_id)
    return session.output.summary(f"removed {what}", fields)


@options.verb("ls", "dlcmd user ls", "dlcmd user ls --json", group=user)
def ls(session: Session) -> int:
    """List users with their keys and rights."""
    users = session.client.users()
    for one in users:
        lines = [one.name]
        for key in one.keys:
            until = f"until {format_time(key.expires_s)}" if key.expires_s else "without limit"
            lines.append(f"  key {key.key_id}, made {format_time(key.created_s)}, valid {until}")
        lines += [f"  may {right} {dataset}" for dataset, right in sorted(one.grants.items())]
        keys = [asdict(key) for key in one.keys]
        fields = {"user": one.name, "keys": keys, "grants": one.grants}
        session.output.record("user", "\n".join(lines), fields)
    return session.output.summary("" if users else "there are no users", {"users": len(users)})


@options.verb(
    "grant",
    "dlcmd user grant anna imagenet read",
    "dlcmd user grant anna '*' admin       # all datasets, and the users",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.argument("dataset", metavar="DATASET")
@click.argument("right", type=click.Choice(RIGHTS))
@options.dry_run
def grant(session: Session, name: str, dataset: str, right: str, is_dry_run: bool) -> int:
    """Set the right of a user on a dataset ('*': on all). Write includes read; admin includes both."""
    chosen = dataset if dataset == ALL_DATASETS else options.dataset_name(dataset)
    fields = {"user": name, "dataset": chosen, "right": right, "dry_run": is_dry_run}
    if is_dry_run:
        if all(known.name != name for known in session.client.users()):
            raise NotFound(f"there is no user {name}")
        return session.output.summary(f"would let {name} {right} {chosen}", fields)
    session.client.grant(name, chosen, right)
    can = f"may {right}" if right != "none" else "has no right on"
    return session.output.summary(f"{name} {can} {chosen}", fields)
