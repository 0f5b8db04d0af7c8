"""`dlcmd group`: groups of users, which have rights as users do."""

from collections.abc import Sequence

import click

from dieselfs.errors import NotFound
from dieselfs.rpc.records import GroupRecord
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

EVERYONE = "everyone"

group = options.verb_group(
    "group",
    "Manage groups of users (administrators). Rights: dlcmd user grant group:NAME DATASET RIGHT.",
    "dlcmd group add vision anna bert",
    "dlcmd user grant group:vision imagenet read",
)


@options.verb(
    "add",
    "dlcmd group add vision anna bert     # a group that does not exist is made",
    "dlcmd group add shared guest         # several people have the key of guest",
    group=group,
)
@click.argument("name", metavar="GROUP")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@options.dry_run
def add(session: Session, name: str, users: Sequence[str], is_dry_run: bool) -> int:
    """Add users to a group. The users of the group 'shared' cannot change their keys."""
    fields = {"group": name, "group_users": list(users), "dry_run": is_dry_run}
    if is_dry_run:
        known = {user.name for user in session.client.users()}
        for user in users:
            if user not in known:
                raise NotFound(f"there is no user {user}")
        return session.output.summary(f"would add {', '.join(users)} to group {name}", fields)
    session.client.add_members(name, users)
    return session.output.summary(f"group {name} has {', '.join(users)}", fields)


@options.verb(
    "rm",
    "dlcmd group rm vision bert     # bert stays a user",
    "dlcmd group rm vision          # the group, with its rights",
    group=group,
)
@click.argument("name", metavar="GROUP")
@click.argument("users", nargs=-1, metavar="[USER]...")
@options.dry_run
def rm(session: Session, name: str, users: Sequence[str], is_dry_run: bool) -> int:
    """Remove users from a group or, if none is named, the group with its rights."""
    what = f"{', '.join(users)} from group {name}" if users else f"group {name}"
    fields = {"group": name, "group_users": list(users), "dry_run": is_dry_run}
    if is_dry_run:
        _check(session, name, users)
        return session.output.summary(f"would remove {what}", fields)
    session.client.remove_members(name, users)
    return session.output.summary(f"removed {what}", fields)


def _check(session: Session, name: str, users: Sequence[str]) -> None:
    """Raise NotFound unless the group exists, with these members."""
    found = next((known for known in session.client.groups() if known.name == name), None)
    if found is None:
        raise NotFound(f"there is no group {name}")
    for user in users:
        if user not in found.members:
            raise NotFound(f"user {user} is not in group {name}")


@options.verb("ls", "dlcmd group ls", "dlcmd group ls --json", group=group)
def ls(session: Session) -> int:
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
