"""Builds everything twice, and compares; tries it; signs the digests. This module runs programs.

python -m release [--key FILE] [--before COMMIT] [--out dist]
"""

import argparse
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.building import Checkout, build
from release.trial import available, check_files, environment, lowest, run, try_out
from release.upgrade import try_upgrade

SIGNED = "dieselfs-release"
"""The namespace of signatures: one for another purpose, by the same key, is none of a release."""


def main() -> None:
    try:
        release()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"release: {error}") from None


def release() -> None:
    """Do what the command line asks. Raises SystemExit, CalledProcessError and TimeoutExpired."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--key", type=Path, help="the private key of OpenSSH that signs")
    parser.add_argument("--before", help="the commit of the release before [the last tag]")
    given = parser.parse_args()
    if given.key and not given.key.is_file():
        raise SystemExit(f"release: {given.key}: no such key")
    os.umask(0o022)
    # What is tried must not import the modules of this checkout, nor use the server of the one who releases.
    for name in [each for each in os.environ if each == "PYTHONPATH" or each.startswith("DIESELFS_")]:
        del os.environ[name]
    checkout = Checkout.clean()
    before = checkout.before(given.before)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        for out in (first, second):
            build(checkout, out)
        compare(first, second)
        (wheel,) = first.glob("*.whl")
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), *map(str, first.glob("*.tar.gz")))
        for number, (version, python) in enumerate(available()):
            with tempfile.TemporaryDirectory() as trial:
                try_wheel(wheel, python, version, Path(trial), is_first=number == 0)
        for package in first.glob("*.deb"):
            try_package(package)
        if before:
            with tempfile.TemporaryDirectory() as trial:
                try_upgrade(checkout.wheel_of(before, Path(trial)), wheel, Path(trial))
            print(f"release: data and a mount of {before} work after the upgrade", flush=True)
        else:
            print(
                "release: no release before, so no upgrade was tried: --before COMMIT names one", flush=True
            )
        shutil.rmtree(given.out, ignore_errors=True)
        shutil.copytree(first, given.out)
    sign(given.out, given.key)
    print(f"release: {given.out} is complete; nothing is published", flush=True)


def compare(first: Path, second: Path) -> None:
    """Raises SystemExit with the names of files that differ, or that only one of the two folders has."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    same, _, _ = filecmp.cmpfiles(first, second, names, shallow=False)
    if differing := names - set(same):
        raise SystemExit(f"release: not the same when built again: {', '.join(sorted(differing))}")
    print(f"release: {len(names)} files are the same, bit by bit, when built again", flush=True)


def try_wheel(wheel: Path, python: str, version: str, folder: Path, *, is_first: bool) -> None:
    """In a new environment with the newest packages, and the first time also with the lowest numpy."""
    own = environment(python, folder, str(wheel))
    check_files(own.parents[1])
    try_out(own, folder)
    print(f"release: {wheel.name} works with Python {version}", flush=True)
    if is_first:
        run(str(own), "-m", "pip", "install", "--quiet", f"numpy=={lowest('numpy')}.*")
        try_out(own, folder)
        print(f"release: and with numpy {lowest('numpy')}", flush=True)


def try_package(package: Path) -> None:
    """Unpack the Debian package, and try what is in it."""
    with tempfile.TemporaryDirectory() as folder:
        run("dpkg-deb", "--extract", str(package), f"{folder}/root")
        try_out(Path(folder, "root/opt/dieselfs/bin/python"), Path(folder))
    print(f"release: {package.name} works", flush=True)


def sign(out: Path, key: Path | None) -> None:
    """Write SHA256SUMS of all files, and with a key its signature, SHA256SUMS.sig."""
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())
    )
    (out / "SHA256SUMS").write_text(sums)
    if key is None:
        print("release: not signed: --key FILE names a key of OpenSSH", flush=True)
        return
    run("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", SIGNED, str(out / "SHA256SUMS"))


if __name__ == "__main__":
    main()
