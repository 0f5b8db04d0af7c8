"""Tries an installation: its files, and what dlcmd does with them. This module runs programs.

The manual pages, completions and units must be there, and dlcmd stores, reads back and verifies files, also through a
mount where /dev/fuse can be opened.
"""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
STEP_TIMEOUT_S = 900.0
"""For one program: an installation downloads packages."""


def run(*words: str, **variables: str) -> None:
    subprocess.run(words, check=True, timeout=STEP_TIMEOUT_S, env={**os.environ, **variables})


def available() -> Iterator[tuple[str, str]]:
    """Version and program of each supported Python that runs here. A line names one that does not."""
    for version in VERSIONS:
        program = shutil.which(f"python{version}")
        words = [program or "", "-c", "import ensurepip"]
        if program and not subprocess.run(words, capture_output=True, timeout=STEP_TIMEOUT_S).returncode:
            yield version, program
        else:
            print(
                f"release: no Python {version} with ensurepip, so the wheel was not tried with it", flush=True
            )


def lowest(package: str) -> str:
    """The lowest version that the project allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = (each for each in project["dependencies"] if each.startswith(f"{package}>="))
    return str(line.partition(">=")[2])


def environment(python: str, folder: Path, wheel: str) -> Path:
    """The Python of a new environment with the wheel."""
    run(python, "-m", "venv", str(folder / "venv"))
    own = folder / "venv/bin/python"
    run(str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return own


def check_files(prefix: Path) -> None:
    """Compare the manual pages, completions, units and scripts of an environment with ours. Raises SystemExit."""
    places = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    wrong = []
    for place, patterns in places.items():
        ours = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
        theirs = {path: prefix / place / path.name for path in ours}
        wrong += [
            str(its)
            for path, its in theirs.items()
            if not its.is_file() or its.read_bytes() != path.read_bytes()
        ]
        wrong += [str(prefix / place)] * (not ours)
    if wrong:
        raise SystemExit(f"release: not in the wheel, or not as here: {', '.join(sorted(wrong))}")


def try_out(python: Path, folder: Path) -> None:
    """Store, read back and verify some files with the installed dlcmd, and mount them. Raises CalledProcessError."""
    source, home, target = folder / "source", folder / "home", folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    source.mkdir(exist_ok=True)
    for number in range(100):
        (source / f"{number}.bin").write_bytes(os.urandom(1000))
    # By its Python: the first line of the program of a package names the place where that will be installed.
    dlcmd = str(python), str(python.with_name("dlcmd")), "--server", "embedded"
    for words in (
        ("put", "-q", "-r", f"{source}/", "dl://x/"),
        ("get", "-q", "-r", "dl://x/", str(target)),
        ("verify", "dl://x"),
        ("check", "-q", f"{source}/", "dl://x/"),
        ("doctor", "-q"),
    ):
        run(*dlcmd, *words, DIESELFS_HOME=str(home))
    run("diff", "-r", str(source), str(target))
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        compared = ("sh", "-c", 'diff -r --exclude=.dieselfs "$0" "$DIESELFS_MOUNT"', str(source))
        run(*dlcmd, "run", "dl://x", "--", *compared, DIESELFS_HOME=str(home))
    else:
        print("release: no /dev/fuse, so nothing was mounted", flush=True)
