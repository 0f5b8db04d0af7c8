"""The verbs for users and groups of a server, their keys and rights. This module writes key files."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import click

from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, NotFound, os_errors_as
from dieselfs.net.auth import Key, check_local_name
from dieselfs.net.private_file import write_private_file
from dieselfs.rpc.records import GroupRecord
from dieselfs.units import count, format_duration, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

ALL_DATASETS = "*"
GROUP_MARK = "group:"
KEEP_S_MIN = 10.0
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
def user_add(session: Session, name: str, out: str | None, lifetime_s: float, is_dry_run: bool) -> int:
    """Make a key for a user; a user that does not exist is created. The key is shown only once.

    A user may have several keys, so that a key can be replaced without an interruption.
    """
    check_local_name(name)
    fields: dict[str, object] = {"user": name, "out": out}
    if is_dry_run:
        session.client.groups()  # raises AccessDenied without the right
        return session.output.summary(f"would make a key for {name}", {"dry_run": True, **fields})
    expires_s = int(time.time() + lifetime_s) if lifetime_s else 0
    return _give_out(
        session, out, partial(session.client.add_key, name, expires_s), f"the key of {name}", fields
    )


@options.verb(
    "token",
    "dlcmd user token --dataset imagenet --for 12h --out job.key    # for a job; it reads imagenet, nothing else",
    "dlcmd user token --dataset runs --write --for 2d > job.key",
    group=user,
)
@click.option(
    "--dataset", "datasets", multiple=True, required=True, metavar="NAME", help="May be given several times."
)
@click.option("--write", "is_writer", is_flag=True, help="The token may write, if you may.")
@click.option(
    "--for", "lifetime_s", type=options.DURATION, default="1d", show_default=True, help="At most 31 days."
)
@click.option("--out", metavar="FILE", help="Write the token to FILE, a new file with mode 0600.")
def user_token(
    session: Session, datasets: Sequence[str], is_writer: bool, lifetime_s: float, out: str | None
) -> int:
    """Make a token for a job: a key of yours that expires, for some datasets alone.

    It is a key file as any other. It has no right that you lack, makes no keys, and ends with the key that made it.
    'dlcmd user ls' lists your tokens, and 'dlcmd user rm NAME --key ID' removes one.
    """
    names = [options.dataset_name(name) for name in datasets]
    right = "write" if is_writer else "read"
    make = partial(session.client.add_token, names, right, int(time.time() + lifetime_s))
    what = f"the token to {right} {', '.join(names)} for {format_duration(lifetime_s)}"
    return _give_out(session, out, make, what, {"grant_datasets": names, "right": right, "out": out})


def _give_out(
    session: Session, out: str | None, make: Callable[[], Key], what: str, fields: dict[str, object]
) -> int:
    """Make a key, and print it, or write it to the file `out`."""
    if out is None:
        key = make()
        text = key.text()
        session.output.record("key", text.rstrip("\n"), {"user": key.user, "key": text})
        return session.output.summary("", {**fields, "key_id": key.key_id})
    key = _write_key(out, make)
    return session.output.summary(f"{what} is in {out}: {key.key_id}", {**fields, "key_id": key.key_id})


def _write_key(out: str, make: Callable[[], Key]) -> Key:
    """The file is made before the key, so that no key is lost."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise AlreadyExists(f"{out} exists, and keys replace no files: choose another name") from None
    except OSError as error:
        raise DieselfsError(f"{out}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            key = make()
            file.write(key.text())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(out)
        raise
    return key


@options.verb(
    "rotate",
    "dlcmd user rotate                    # a new key in your key file; the old one expires in a day",
    "dlcmd user rotate --keep 10min",
    group=user,
)
@click.option(
    "--keep",
    "keep_s",
    type=options.DURATION,
    default="1d",
    show_default=True,
    help="The old key stays valid for this time.",
)
@options.dry_run
def rotate(session: Session, keep_s: float, is_dry_run: bool) -> int:
    """Replace the key in your key file by a new one, which is made here. Copies of the file stop working when the old
    key expires; programs that use this file change over without an interruption.
    """
    from dieselfs.net.auth import read_key_file

    settings = session.settings()
    if not settings.key_file or not settings.server:
        raise InvalidInput("there is no key to replace: name your key file with --key-file")
    if keep_s < KEEP_S_MIN:
        raise InvalidInput(f"--keep is at least {KEEP_S_MIN} s: programs look for a new key once a second")
    old = read_key_file(settings.key_file)
    fields: dict[str, object] = {"user": old.user, "old_key_id": old.key_id, "key_file": settings.key_file}
    if is_dry_run:
        session.client.datasets()  # raises AccessDenied if the key is not valid
        return session.output.summary(
            f"would replace the key {old.key_id} of {old.user}", {"dry_run": True, **fields}
        )
    new = session.client.add_key(old.user)
    remedy = f"; the old key stays valid (remove the new one: dlcmd user rm {old.user} --key {new.key_id})"
    with os_errors_as(DieselfsError, settings.key_file, remedy):
        write_private_file(settings.key_file, new.text().encode())
    session.client.expire_key(old.key_id, int(time.time() + keep_s))
    return session.output.summary(
        f"{settings.key_file} has the key {new.key_id}; the key {old.key_id} expires in {format_duration(keep_s)}",
        {**fields, "key_id": new.key_id},
    )


@options.verb(
    "rm",
    "dlcmd user rm anna                  # the user, with all keys and rights",
    "dlcmd user rm anna --key 1f0c22ab   # one key; 'dlcmd user ls' lists them",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.option("--key", "key_id", default="", metavar="ID", help="Remove only this key.")
@options.dry_run
def user_rm(session: Session, name: str, key_id: str, is_dry_run: bool) -> int:
    """Remove a user, or one key of a user. All servers apply it within seconds. Users may remove their own keys."""
    what = f"key {key_id} of user {name}" if key_id else f"user {name}"
    fields = {"user": name, "key_id": key_id, "dry_run": is_dry_run}
    if is_dry_run:
        keys = {known.name: {"", *(key.key_id for key in known.keys)} for known in session.client.users()}
        if key_id not in keys.get(name, ()):
            raise NotFound(f"there is no {what}")
        return session.output.summary(f"would remove {what}", fields)
    session.client.remove_key(name, key_id)
    return session.output.summary(f"removed {what}", fields)


@options.verb(
    "bar",
    "dlcmd user bar anna            # all keys and tokens of anna are refused; rights and files stay",
    "dlcmd user bar anna --lift     # they count again",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.option("--lift", "is_lifted", is_flag=True, help="Accept the user again.")
@options.dry_run
def user_bar(session: Session, name: str, is_lifted: bool, is_dry_run: bool) -> int:
    """Refuse a user, whatever key they show, until the bar is lifted. All servers apply it within seconds."""
    fields = {"user": name, "is_barred": not is_lifted, "dry_run": is_dry_run}
    if is_dry_run:
        check_users(session, [name])
        return session.output.summary(f"would {'accept' if is_lifted else 'refuse'} {name}", fields)
    session.client.bar(name, not is_lifted)
    return session.output.summary(f"{name} is {'accepted again' if is_lifted else 'barred'}", fields)


@options.verb("ls", "dlcmd user ls", "dlcmd user ls --json", group=user)
def user_ls(session: Session) -> int:
    """List users with their keys and rights; of users who are no administrators, only themselves."""
    users = session.client.users()
    if users:
        session.output.heading("user, with keys and rights")
    for one in users:
        lines = [f"{one.name}, barred" if one.is_barred else one.name]
        for key in one.keys:
            until = f"until {format_time(key.expires_s)}" if key.expires_s else "without limit"
            kind = "token" if key.grants else "key"
            lines.append(f"  {kind} {key.key_id}, made {format_time(key.created_s)}, valid {until}")
            lines += [f"    may {right} {dataset}" for dataset, right in sorted(key.grants.items())]
        lines += [f"  may {right} {dataset}" for dataset, right in sorted(one.grants.items())]
        lines += [f"  is in group {name}, by the identity provider" for name in one.groups]
        keys = [key._asdict() for key in one.keys]
        fields = {
            "user": one.name,
            "keys": keys,
            "grants": one.grants,
            "is_barred": one.is_barred,
            "provider_groups": list(one.groups),
        }
        session.output.record("user", "\n".join(lines), fields)
    return session.output.summary("" if users else "there are no users", {"users": len(users)})


@options.verb(
    "grant",
    "dlcmd user grant anna imagenet read",
    "dlcmd user grant anna '*' admin       # all datasets, and the users",
    "dlcmd user grant group:everyone imagenet read    # public: whoever has a key may read it",
    group=user,
)
@click.argument("name", metavar="NAME")
@click.argument("dataset", metavar="DATASET")
@click.argument("right", type=click.Choice(RIGHTS))
@options.dry_run
def grant(session: Session, name: str, dataset: str, right: str, is_dry_run: bool) -> int:
    """Set the right of a user, or of a group (group:NAME), on a dataset ('*': on all). Write includes read; admin
    includes both. The group 'everyone' has all users.
    """
    chosen = dataset if dataset == ALL_DATASETS else options.dataset_name(dataset)
    fields = {"user": name, "dataset": chosen, "right": right, "dry_run": is_dry_run}
    if is_dry_run:
        _check_exists(session, name)
        return session.output.summary(f"would let {name} {right} {chosen}", fields)
    session.client.grant(name, chosen, right)
    can = f"may {right}" if right != "none" else "has no right on"
    return session.output.summary(f"{name} {can} {chosen}", fields)


def check_users(session: Session, names: Iterable[str]) -> None:
    """Raise NotFound unless there are such users."""
    known = {user.name for user in session.client.users()}
    for name in names:
        if name not in known:
            raise NotFound(f"there is no user {name}")


def _check_exists(session: Session, name: str) -> None:
    """Raise NotFound unless there is such a user or group."""
    group = name.removeprefix(GROUP_MARK)
    if group == name:
        check_users(session, [name])
    elif group != EVERYONE:
        _check_members(session, group, ())


EVERYONE = "everyone"

group = options.verb_group(
    "group",
    "Manage groups of users (administrators). Rights: dlcmd user grant group:NAME DATASET RIGHT.",
    "dlcmd group add vision anna bert",
    "dlcmd user grant group:vision imagenet read",
)


@options.verb(
    "add",
    "dlcmd group add vision anna bert     # a group that does not exist is made; without users, it is empty",
    "dlcmd group add shared guest         # several people have the key of guest",
    group=group,
)
@click.argument("name", metavar="GROUP")
@click.argument("users", nargs=-1, metavar="[USER]...")
@options.dry_run
def group_add(session: Session, name: str, users: Sequence[str], is_dry_run: bool) -> int:
    """Add users to a group. The users of the group 'shared' cannot change their keys."""
    fields = {"group": name, "group_users": list(users), "dry_run": is_dry_run}
    if is_dry_run:
        check_users(session, users)
        return session.output.summary(f"would add {', '.join(users) or 'nobody'} to group {name}", fields)
    session.client.add_members(name, users)
    return session.output.summary(f"group {name} has {', '.join(users) or 'no new user'}", fields)


@options.verb(
    "rm",
    "dlcmd group rm vision bert     # bert stays a user",
    "dlcmd group rm vision          # the group, with its rights",
    group=group,
)
@click.argument("name", metavar="GROUP")
@click.argument("users", nargs=-1, metavar="[USER]...")
@options.dry_run
def group_rm(session: Session, name: str, users: Sequence[str], is_dry_run: bool) -> int:
    """Remove users from a group or, if none is named, the group with its rights."""
    what = f"{', '.join(users)} from group {name}" if users else f"group {name}"
    fields = {"group": name, "group_users": list(users), "dry_run": is_dry_run}
    if is_dry_run:
        _check_members(session, name, users)
        return session.output.summary(f"would remove {what}", fields)
    session.client.remove_members(name, users)
    return session.output.summary(f"removed {what}", fields)


def _check_members(session: Session, name: str, users: Sequence[str]) -> None:
    """Raise NotFound unless the group exists, with these members."""
    found = next((known for known in session.client.groups() if known.name == name), None)
    if found is None:
        raise NotFound(f"there is no group {name}")
    for user in users:
        if user not in found.members:
            raise NotFound(f"user {user} is not in group {name}")


@options.verb("ls", "dlcmd group ls", "dlcmd group ls --json", group=group)
def group_ls(session: Session) -> int:
    """List groups with their users and rights. The group 'everyone' has all users."""
    groups = session.client.groups()
    for one in groups:
        fields = {"group": one.name, "group_users": list(one.members), "grants": one.grants}
        session.output.record("group", _text(one), fields)
    return session.output.summary("" if groups else "there are no groups", {"groups": len(groups)})


def _text(one: GroupRecord) -> str:
    lines = [one.name]
    if one.name != EVERYONE:
        lines.append(
            f"  {count(len(one.members), 'user')}{': ' if one.members else ''}{', '.join(one.members)}"
        )
    return "\n".join([*lines, *(f"  may {right} {dataset}" for dataset, right in sorted(one.grants.items()))])
