"""Tries an upgrade from the release before: its data, a mount that is read all the time, and its clients.

This module runs programs.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from release.trial import environment, run

START_TIMEOUT_S = 60.0
"""For a server to listen or to end, and for a reader to read all files."""
POLL_S = 0.05

FILES, FILE_BYTES = 200, 20_000
_CONFIG = """\
listen = ["unix:{folder}/server.sock"]
store = "posix://{folder}/chunks"
metadata = "sqlite://{folder}/metadata.db"
state = "{folder}/state"
"""
_READER = """\
import os, sys
from pathlib import Path
source, mount, passes = map(Path, sys.argv[1:])
while True:
    for expected in source.iterdir():
        with open(mount / expected.name, "rb") as file:
            if file.read() != expected.read_bytes():
                sys.exit(f"{file.name}: other bytes")
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with open(passes, "ab") as file:
        file.write(b".")
"""


class Site:
    """A server in a folder, and the programs of an environment that serve, write, mount and read there.

    - `own`: the Python that is upgraded; `old`: that of clients which stay as they are
    """

    def __init__(self, folder: Path, before: Path) -> None:
        self.folder, self.mount = folder, folder / "mount"
        self.own = environment(sys.executable, folder / "own", str(before))
        self.old = environment(sys.executable, folder / "old", str(before))
        (folder / "server.toml").write_text(_CONFIG.format(folder=folder))

    def files(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        for number in range(FILES):
            (made / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
        return made

    def dlcmd(self, python: Path, *words: str) -> None:
        server = f"unix:{self.folder}/server.sock"
        run(str(python.with_name("dlcmd")), "--server", server, "-q", *words, HOME=str(self.folder))

    def read_back(self, python: Path, source: Path, location: str) -> None:
        target = self.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        self.dlcmd(python, "get", "-r", location, str(target))
        run("diff", "-r", str(source), str(target))

    @contextmanager
    def server(self) -> Iterator[None]:
        program = str(self.own.with_name("dieselfs-server")), "--config", str(self.folder / "server.toml")
        if not (self.folder / "chunks").exists():
            run(*program, "--init-only", HOME=str(self.folder))
        with _process(*program, HOME=str(self.folder)) as server:
            _wait(server, lambda: (self.folder / "server.sock").exists(), "the server listens")
            yield

    @contextmanager
    def mounted(self) -> Iterator[None]:
        self.mount.mkdir()
        self.dlcmd(self.own, "mount", "dl://x", str(self.mount))
        try:
            yield
        finally:
            self.dlcmd(self.own, "umount", "--lazy", str(self.mount))

    @contextmanager
    def read(self, source: Path) -> Iterator[Callable[[], None]]:
        """Read the mount all the time. The function waits for a whole pass. Raises SystemExit if one read fails."""
        passes = self.folder / "passes"
        passes.touch()
        with _process(sys.executable, "-c", _READER, str(source), str(self.mount), str(passes)) as reader:

            def wait() -> None:
                now = passes.stat().st_size
                _wait(reader, lambda: passes.stat().st_size >= now + 2, "all files were read")

            wait()
            yield wait


def try_upgrade(before: Path, wheel: Path, folder: Path) -> None:
    """Replace the wheel `before` by `wheel`, as an administrator does, below a server and a mount that is read.

    Clients and the mount of the release before read from the new server; then the mount is upgraded. Raises SystemExit
    and CalledProcessError.
    """
    site = Site(folder, before)
    first, second = site.files("first"), site.files("second")
    with ExitStack() as ends:
        with site.server():
            site.dlcmd(site.own, "put", "-r", f"{first}/", "dl://x/")
            site.dlcmd(site.own, "tag", "add", "dl://x", "kept")
            ends.enter_context(site.mounted())
            wait_for_pass = ends.enter_context(site.read(first))
            pip = (str(site.own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            run(*pip, str(wheel))
            run(*pip, "--no-deps", "--force-reinstall", str(wheel))  # also one of the same version
        ends.enter_context(site.server())
        wait_for_pass()
        site.read_back(site.old, first, "dl://x/")
        site.dlcmd(site.own, "upgrade", str(site.mount))
        wait_for_pass()
        site.dlcmd(site.own, "put", "-r", f"{second}/", "dl://y/")
        for python in (site.own, site.old):
            site.read_back(python, second, "dl://y/")
            site.read_back(python, first, "dl://x@kept/")
        for name in ("x", "y"):
            site.dlcmd(site.own, "verify", f"dl://{name}")
            site.dlcmd(site.own, "fsck", f"dl://{name}")


@contextmanager
def _process(*words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(words, env={**os.environ, **variables}) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _wait(process: subprocess.Popen[bytes], is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"release: not after {START_TIMEOUT_S:g} s, or never: {what}")
        time.sleep(POLL_S)
