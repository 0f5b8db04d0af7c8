"""The work of `dlcmd config test`: one step after the other, as a user's first command would meet them."""

import time
from collections.abc import Callable, Iterator

from dieselfs import __version__
from dieselfs.errors import EXIT_OK, AccessDenied
from dieselfs.names import Location
from dieselfs.settings.table import EMBEDDED
from dieselfs.units import count, format_duration
from dieselfs_tools.cli.session import Session


def run_test(session: Session) -> int:
    """Print one line for each step; returns the exit code. Raises the error of the first step that fails."""
    output, done = session.output, 0
    for name, step in steps(session):
        began_s = time.monotonic()
        found = step()
        elapsed_s = time.monotonic() - began_s
        fields = {"name": name, "found": found, "seconds": round(elapsed_s, 3)}
        output.record("step", f"{name:9} {found} ({format_duration(elapsed_s)})", fields)
        done += 1
    return output.summary("the settings work", {"steps": done}, EXIT_OK)


def steps(session: Session) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and function of each step, which says what it found, or raises DieselfsError."""
    yield "settings", lambda: session.settings().server or f"{EMBEDDED}: {session.settings().home}"
    yield "key", lambda: _key(session)
    yield "server", lambda: f"{session.client.address} answers; {_datasets(session)}"
    yield "version", lambda: _version(session)
    yield "read", lambda: _read(session)


def _key(session: Session) -> str:
    """Raises AccessDenied if the file cannot be read, or is open to others."""
    from dieselfs.net.auth import read_key_file

    file = session.settings().key_file
    if file is None:
        return "none; embedded data and Unix sockets need none"
    key = read_key_file(file)
    return f"{file}: key {key.key_id} of {key.user}"


def _datasets(session: Session) -> str:
    """Logs in. Raises Unavailable, AccessDenied."""
    found = session.client.datasets()
    return f"{count(len(found), 'dataset')} to read"


def _version(session: Session) -> str:
    try:
        version = session.client.status().version
    except AccessDenied:  # only administrators may ask
        return f"this is {__version__}; the server speaks the same protocol"
    note = "" if version == __version__ else f", this is {__version__}: upgrade the older one"
    return f"server {version}{note}"


def _read(session: Session) -> str:
    """Reads the first file of the smallest dataset, and verifies it."""
    with_files = [dataset for dataset in session.client.datasets() if dataset.files]
    if not with_files:
        return "skipped: there is no file yet"
    name = min(with_files, key=lambda dataset: dataset.files).name
    dataset = session.dataset(name)
    snapshot = dataset.snapshot
    node = next(node for node in snapshot.walk() if snapshot.stat(node).is_file)
    (content,) = dataset.get_nodes([node])
    return f"{Location(name, snapshot.path(node), False)}: {count(len(content), 'byte')}"
