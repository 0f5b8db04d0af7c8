"""README.md and the pages of docs/guide are right to the letter: their commands and programs are run, page by page.

`tests/support/markdown.py` says how a page marks what is not run. docs/guide/training.md needs more than this and has
`test_training_page.py`.
"""

import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs_client.daemon import control
from dieselfs_tools.cli.private_home import private_home
from tests.support import warm
from tests.support.documents import DOCUMENTS, REPOSITORY
from tests.support.job_daemons import end_job_daemons
from tests.support.markdown import Block, blocks
from tests.support.server import free_port

TIMEOUT_S = 240.0
CLASSES = ("n01440764", "n01443537")
IMAGES_PER_CLASS = 12
PROGRAMS = {
    "dlcmd": "dieselfs_tools.dlcmd",
    "dieselfs-server": "dieselfs_server.main",
    "dieselfs-mount": "dieselfs_client.main",
}
TRAIN = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
files = [path for path in pathlib.Path(parser.parse_args().data).rglob("*") if path.is_file()]
assert files and all(path.read_bytes() for path in files)
"""

PAGES = [
    REPOSITORY / "README.md",
    *sorted(page for page in (DOCUMENTS / "guide").glob("*.md") if page.name != "training.md"),
]
FIRST_PAGES = ("README", "quick-start")
"""Readers of these have made no folder to mount on."""

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


def write_images(folder: Path) -> None:
    """A folder as a user might have it: train/CLASS/*.JPEG and val/CLASS/*.JPEG, of bytes that mean nothing."""
    content = random.Random(1)
    for part in ("train", "val"):
        for name in CLASSES:
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(10026, 10026 + IMAGES_PER_CLASS):
                (place / f"{name}_{number}.JPEG").write_bytes(content.randbytes(2_000))


@dataclass(frozen=True)
class Session:
    """A user's machine: ./imagenet/ and ./train.py, a home, /mnt/ in a folder, and a free port in place of 7071.
    `$SAMPLES` has files of other libraries. The pages' dataset has a name of its own here, as long as `imagenet`:
    somebody may have mounted one of that name.
    """

    folder: Path
    home: Path
    runtime: Path
    port: int
    name: str = field(default_factory=lambda: f"i{secrets.token_hex(4)[1:]}")

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(self.folder),
            "DIESELFS_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LANG": "C.UTF-8",
            "SAMPLES": str(REPOSITORY / "tests" / "samples"),
        }

    def placed(self, text: str) -> str:
        text = text.replace("/mnt/", f"{self.folder}/mnt/").replace(":7071", f":{self.port}")
        return self.named(text)

    def named(self, text: str) -> str:
        return text.replace("imagenet", self.name)

    def run(self, *command: str) -> str:
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def shell(self, commands: str) -> str:
        return self.run("/bin/bash", "-eu", "-o", "pipefail", "-c", self.placed(commands))

    def python(self, program: str) -> None:
        file = self.folder / "program.py"
        file.write_text(self.placed(program))
        self.run(sys.executable, str(file))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "bin").mkdir()
    for name, module in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(warm.script(module))
        program.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "train.py").write_text(TRAIN)
    runtime = Path(tempfile.mkdtemp(prefix="pages-"))
    with private_home() as home:
        session = Session(tmp_path, home, runtime, free_port())
        write_images(tmp_path / session.name)
        (tmp_path / "mnt").mkdir()
        try:
            yield session
        finally:
            for mountpoint in (tmp_path / "mnt").iterdir():
                with suppress(MountError):
                    control.unmount(mountpoint, lazily=True)
            end_job_daemons(runtime)
            shutil.rmtree(runtime)


def run_block(session: Session, block: Block) -> None:
    if block.language == "python":
        session.python(block.text)
    elif block.language == "console":
        for command, output in block.expectations():
            assert session.shell(command) == session.named(output), command
    else:
        session.shell(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_page_shows_runs(page: Path, session: Session) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    if page.stem not in FIRST_PAGES:
        (session.folder / "mnt" / session.name).mkdir()
    for block in found:
        if not block.reason:
            try:
                run_block(session, block)
            except AssertionError as error:
                raise AssertionError(f"{page.relative_to(REPOSITORY)}:{block.line}: {error}") from None
