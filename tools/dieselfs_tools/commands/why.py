"""`dlcmd why`: what limits a training that reads a mount."""

import os
from dataclasses import asdict

import click

from dieselfs.errors import InvalidInput
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

WHY_S = 5.0
SINCE_MAX = 1.5
"""With `--since-start`: a server that has run for longer than this many times the mount says nothing about it."""


@options.verb("why", "dlcmd why /mnt/imagenet", "dlcmd why /mnt/imagenet --for 30s --json")
@click.argument("mountpoint", type=options.MOUNTPOINT)
@click.option(
    "--for", "duration_s", type=options.DURATION, default=WHY_S, help="Watch it for this time. [5s]"
)
@click.option("--since-start", is_flag=True, help="Take everything since the daemon was started.")
def why(session: Session, mountpoint: str, duration_s: float, since_start: bool) -> int:
    """Say in one paragraph what limits the training that reads a mount now, and the one thing to change."""
    from dieselfs.telemetry.activity import Activity, ServerActivity
    from dieselfs_client.daemon import control
    from dieselfs_tools.observe.diagnosis import diagnosis
    from dieselfs_tools.observe.mount_servers import MountServers, server_of
    from dieselfs_tools.observe.watching import not_found, watched

    if duration_s <= 0:
        raise InvalidInput("--for needs a time, for example 5s")
    place = os.path.realpath(mountpoint)
    servers = MountServers(server_of(place), session.settings())
    views = watched(duration_s, servers.with_published)
    for since in (True, False):
        seen = next(views)
        mounts = [
            each for each in seen if isinstance(each, Activity) and each.about.get("mountpoint") == place
        ]
        if not mounts:
            raise not_found(place, "why")
        if since and since_start:
            break
        if since:
            session.output.aside(f"watching {place} for {duration_s:g} s ...")
    serving = control.daemon_at(place)  # that of an earlier mount may live on, for files that are still open
    mount = next((each for each in mounts if each.process == serving), mounts[0])
    here = [each for each in seen if isinstance(each, ServerActivity)]
    asked = [each for each in here if "address" in each.about]
    unknown = servers.unknown
    if since_start and any(each.seconds > SINCE_MAX * mount.seconds for each in asked or here):
        asked, here, unknown = [], [], "the server has run for longer than the mount: leave out --since-start"
    found = diagnosis(mount, asked or here, unknown)
    text = f"{found.text}\n{found.advice}"
    session.output.record("diagnosis", text, {**asdict(found), "activity": asdict(mount)})
    return session.output.summary("", {"limit": found.limit})
