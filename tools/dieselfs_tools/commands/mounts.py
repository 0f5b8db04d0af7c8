"""`dlcmd mounts`: mounted datasets and cache daemons."""

from dataclasses import asdict

from dieselfs.names import printable
from dieselfs_client.daemon import cache_daemons, control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb("mounts", "dlcmd mounts", "dlcmd mounts --json")
def mounts(session: Session) -> int:
    """List the mounted datasets of this machine, and your cache daemons ('dlcmd cache')."""
    found, daemons = control.mounts(), cache_daemons.cache_daemons()
    if found or daemons:
        session.output.heading("dataset on folder (what serves it)")
    for mount in found:
        place = printable(mount.mountpoint.encode("utf-8", "surrogateescape"))
        text = f"dl://{mount.dataset} on {place} ({_state(mount)})"
        fields = {**asdict(mount), "options": list(mount.options)}
        if mount.generation is None:
            del fields["generation"]
        session.output.record("mount", text, fields)
    for daemon in daemons:
        job = f", job {daemon.job}" if daemon.job else ""
        text = f"dl://{daemon.dataset} in memory (cache daemon {daemon.process}, generation {daemon.generation}{job})"
        session.output.record("cache", text, asdict(daemon))
    if not found:
        session.output.note("no dataset is mounted")
    return session.output.summary("", {"mounts": len(found), "caches": len(daemons)})


def _state(mount: control.Mount) -> str:
    if mount.is_stale:
        return f"dead: {printable(mount.trouble.encode('utf-8', 'surrogateescape')) or 'mount it again'}"
    if mount.process is None:
        return "process of another user"
    state = f"process {mount.process}, daemon {mount.daemon or 'is being replaced'}, view {mount.view}"
    if mount.view_reason:
        state += f": {mount.view_reason}"
    if mount.following:  # which begins with the generation
        state += f", {mount.following}"
    elif mount.generation is not None:
        state += f", generation {mount.generation}"
    if mount.restarts:
        state += f", restarted {mount.restarts} times after a crash"
    if not mount.resends:
        state += "; if the daemon dies, open files fail"
    if mount.trouble:
        state += f"; last trouble: {printable(mount.trouble.encode('utf-8', 'surrogateescape'))}"
    return f"{state}; last error: {mount.last_error}" if mount.last_error else state
