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
        state = "dead: mount it again" if mount.is_stale else f"process {mount.process or 'of another user'}"
        text = f"dl://{mount.dataset} on {printable(mount.mountpoint.encode('utf-8', 'surrogateescape'))} ({state})"
        fields = {
            "dataset": mount.dataset,
            "mountpoint": mount.mountpoint,
            "process": mount.process,
            "is_stale": mount.is_stale,
            "options": list(mount.options),
        }
        session.output.record("mount", text, fields)
    if not found:
        session.output.note("no dataset is mounted")
    return session.output.summary("", {"mounts": len(found)}, EXIT_OK)
