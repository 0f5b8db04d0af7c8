"""Builds the files of a release from a commit. This module runs programs.

All of them have the time of the commit, and are made in a new folder from what the commit has, so that neither this
machine, nor its clock, nor the place shows in them.
"""

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from release.archives import Entry, image, members, tar, tar_gz
from release.debian import ARCHITECTURES, SYSTEM_PYTHON, package
from release.trial import ROOT, STEP_TIMEOUT_S, run

IMAGE = "localhost/dieselfs-release"
"""The name of the image while it is built."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit of this repository, and its time."""

    commit: str
    time_s: int

    @classmethod
    def clean(cls) -> "Checkout":
        """The present commit. Raises SystemExit if files differ from it."""
        if changed := _git("status", "--porcelain", "--untracked-files=no"):
            raise SystemExit(f"release: a release is made of a commit; commit first: {changed.split()[-1]}")
        commit, time_s = _git("show", "--no-patch", "--format=%H %ct").split()
        return cls(commit, int(time_s))

    def before(self, given: str | None) -> str:
        """The release before: the commit `given`, or else the last tag of a version before this commit, or empty.

        Raises SystemExit if the given commit is not here.
        """
        if given:
            try:
                return _git("rev-parse", "--verify", f"{given}^{{commit}}")
            except subprocess.CalledProcessError:
                raise SystemExit(
                    f"release: {given}: no such commit here; fetch it, or name another"
                ) from None
        words = ("tag", "--merged", self.commit, "--no-contains", self.commit, "--sort=-v:refname", "v*")
        return next(iter(_git(*words).split()), "")

    def export(self, folder: Path, commit: str = "") -> None:
        """Write the files of the commit, or of another one, to a folder."""
        settings = ("-c", "tar.umask=0022", "-c", "core.autocrlf=false")  # not those of this machine
        words = ["git", "-C", str(ROOT), *settings, "archive", "--format=tar", commit or self.commit]
        packed = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=STEP_TIMEOUT_S).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")

    def wheel_of(self, commit: str, folder: Path) -> Path:
        """A wheel of another commit."""
        self.export(folder / "source", commit)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(folder / "source"))
        (wheel,) = folder.glob("*.whl")
        return wheel


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=STEP_TIMEOUT_S
    ).stdout.strip()


def build(checkout: Checkout, out: Path) -> None:
    """Build wheel, source distribution, chart, Debian package, SBOM and image into a new folder.

    Without the Python of Debian 12 there are no Debian package and SBOM, without buildah and mmdebstrap no image: one
    line says which.
    """
    out.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        checkout.export(source)
        version = _version(source)
        wheel = build_python(source, out, checkout.time_s)
        (out / f"dieselfs-chart-{version}.tgz").write_bytes(chart(source, checkout.time_s))
        if shutil.which(SYSTEM_PYTHON):
            build_debian(source, wheel, Path(folder, "locked"), out, version, checkout.time_s)
        else:
            print(f"release: no {SYSTEM_PYTHON} of Debian 12, so no Debian package and no SBOM", flush=True)
        missing = [program for program in ("buildah", "mmdebstrap") if not shutil.which(program)]
        if not missing:
            build_image(source, Path(folder, "image.tar"), out / f"dieselfs-{version}-image.tar", checkout)
        else:
            print(f"release: no {' and no '.join(missing)}, so no image", flush=True)


def _version(source: Path) -> str:
    (version,) = re.findall(r'^__version__ = "(.*)"', (source / "dieselfs/__init__.py").read_text(), re.M)
    return str(version)


def build_python(source: Path, out: Path, time_s: int) -> Path:
    """The wheel and the source distribution, by the setuptools of the lock. Returns the wheel."""
    locked = next(
        line.split()[0]
        for line in (source / "deploy/requirements.txt").read_text().splitlines()
        if line.startswith("setuptools==")
    )
    constraint = source.with_name("constraint.txt")
    constraint.write_text(f"{locked}\n")
    variables = {"SOURCE_DATE_EPOCH": str(time_s), "PIP_CONSTRAINT": str(constraint)}
    run(sys.executable, "-m", "build", "--outdir", str(out), str(source), **variables)
    (sdist,) = out.glob("*.tar.gz")
    sdist.write_bytes(tar_gz(dict(members(sdist.read_bytes())), time_s))  # setuptools writes times and owners
    (wheel,) = out.glob("*.whl")
    return wheel


def chart(source: Path, time_s: int) -> bytes:
    """The chart as `helm package` would make it, which writes the time of the day into it."""
    folder = source / "deploy/helm"
    return tar_gz(_entries(folder), time_s)


def _entries(folder: Path) -> dict[str, Entry]:
    """All files and links below a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = Entry(link=str(path.readlink()))
        elif path.is_file():
            found[str(path.relative_to(folder))] = Entry(path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def build_debian(source: Path, wheel: Path, place: Path, out: Path, version: str, time_s: int) -> None:
    """The Debian package, of an environment at `place` with the locked versions, and the SBOM of that."""
    run(SYSTEM_PYTHON, "-m", "venv", str(place))
    python = str(place / "bin/python")
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", "--require-hashes", "-r", str(source / "deploy/requirements.txt"))
    run(*pip, "install", "--no-compile", "--no-deps", str(wheel))
    run(*pip, "uninstall", "--yes", "setuptools", "pip")  # what built it
    write_sbom(python, out / "sbom.json", time_s)
    settings = {"server.toml": (source / "deploy/server.toml").read_bytes()}
    packed = package(_entries(place), str(place), settings, version, platform.machine(), time_s)
    (out / f"dieselfs_{version}_{ARCHITECTURES[platform.machine()]}.deb").write_bytes(packed)


def write_sbom(python: str, path: Path, time_s: int) -> None:
    """Describe an environment, without its places on this machine."""
    words = ("environment", "--output-reproducible", "--sv", "1.6", "--of", "JSON", "-o", str(path), python)
    run(sys.executable, "-m", "cyclonedx_py", *words, SOURCE_DATE_EPOCH=str(time_s))
    found = json.loads(path.read_text())
    for component in found["components"]:
        references = component.get("externalReferences", [])
        component["externalReferences"] = [each for each in references if not each["url"].startswith("file:")]
    path.write_text(json.dumps(found, indent=1) + "\n")


def build_image(source: Path, packed: Path, path: Path, checkout: Checkout) -> None:
    """The image as `docker load`, `podman load` and `skopeo` read it: the other format has no health checks."""
    variables = {
        "BASE": os.environ.get("BASE", "debian"),
        "SOURCE_DATE_EPOCH": str(checkout.time_s),
        "REVISION": checkout.commit,
    }
    run(str(source / "deploy/container/build.sh"), IMAGE, **variables)
    try:
        run("buildah", "push", "--quiet", IMAGE, f"docker-archive:{packed}:dieselfs:{_version(source)}")
    finally:
        run("buildah", "rmi", "--force", IMAGE)
    path.write_bytes(tar(image(dict(members(packed.read_bytes()))), checkout.time_s))
