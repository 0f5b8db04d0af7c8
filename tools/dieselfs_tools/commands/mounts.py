"""`dlcmd mounts`: what is mounted."""

from dieselfs.errors import EXIT_OK
from dieselfs.names import printable
from dieselfs_client import control
from dieselfs_tools import options
from dieselfs_tools.session import Session


@options.verb(
    "mounts",
    "dlcmd mounts",
    "dlcmd mounts --json",
)
def mounts(session: Session) -> int:
    """List the mounted datasets of this machine."""
    found = control.mounts()
    for mount in found:
        place = printable(mount.mountpoint.encode("utf-8", "surrogateescape"))
        text = f"dl://{mount.dataset} on {place} ({_state(mount)})"
        fields = {
            "dataset": mount.dataset,
            "mountpoint": mount.mountpoint,
            "process": mount.process,
            "daemon": mount.daemon,
            "restarts": mount.restarts,
            "upgrades": mount.upgrades,
            "resends": mount.resends,
            "trouble": mount.trouble,
            "is_stale": mount.is_stale,
            "options": list(mount.options),
        }
        session.output.record("mount", text, fields)
    if not found:
        session.output.note("no dataset is mounted")
    return session.output.summary("", {"mounts": len(found)}, EXIT_OK)


def _state(mount: control.Mount) -> str:
    if mount.is_stale:
        return "dead: mount it again"
    if mount.process is None:
        return "process of another user"
    state = f"process {mount.process}, daemon {mount.daemon or 'is being replaced'}"
    if mount.restarts:
        state += f", which died {mount.restarts} times"
    if not mount.resends:
        state += "; if it dies, files that are open fail"
    return f"{state}; last trouble: {mount.trouble}" if mount.trouble else state
