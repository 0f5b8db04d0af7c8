"""systemd accepts the units of `deploy/`, and what it makes of the line of fstab there; and where the job of Slurm
mounts.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
SYSTEMD = DEPLOY / "systemd"
GENERATOR = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")
PROGRAMS = "/opt/dieselfs/bin/"
TIMEOUT_S = 60

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def complaints(unit: Path) -> str:
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [line for line in ran.stderr.splitlines() if unit.name in line]
    return "\n".join(lines) if ran.returncode == 0 else ran.stderr or "refused"


@needs_systemd
@pytest.mark.parametrize("unit", sorted(SYSTEMD.glob("*.service")), ids=lambda unit: unit.name)
def test_units_are_valid(unit: Path, tmp_path: Path) -> None:
    """A template is tried with a name, and any program stands for ours, which is not installed there."""
    text = unit.read_text()
    programs = re.findall(rf"^ExecStart={PROGRAMS}(\S+)", text, re.MULTILINE)
    assert programs and all(f"{name} = " in (REPOSITORY / "pyproject.toml").read_text() for name in programs)
    assert complaints(copied(unit, tmp_path)) == ""


def copied(unit: Path, folder: Path) -> Path:
    """A copy of a unit, in a folder with copies of all."""
    for other in SYSTEMD.iterdir():
        name = other.name.replace("@.", "@imagenet.")
        (folder / name).write_text(re.sub(rf"{PROGRAMS}\S+", sys.executable, other.read_text()))
    return folder / unit.name.replace("@.", "@imagenet.")


@needs_systemd
@pytest.mark.parametrize("timer", sorted(SYSTEMD.glob("*.timer")), ids=lambda timer: timer.name)
def test_timers_start_services_that_are_there(timer: Path, tmp_path: Path) -> None:
    assert timer.with_suffix(".service").exists()
    assert complaints(copied(timer, tmp_path)) == ""
    [calendar] = re.findall(r"^OnCalendar=(.+)$", timer.read_text(), re.MULTILINE)
    subprocess.run(
        ["systemd-analyze", "calendar", calendar], timeout=TIMEOUT_S, check=True, capture_output=True
    )


@needs_systemd
@pytest.mark.parametrize("unit", sorted(SYSTEMD.glob("*.service")), ids=lambda unit: unit.name)
def test_services_are_as_confined_as_documented(unit: Path, tmp_path: Path) -> None:
    """With half a point of room for other versions of systemd; what the page does not name fails."""
    page = (REPOSITORY / "docs/guide/operations.md").read_text()
    name = unit.stem.replace("@", "@NAME")
    [exposure] = re.findall(rf"^\| `{name}\.\w+` \|.*\| ([\d.]+) \|$", page, re.MULTILINE)
    copy = copied(unit, tmp_path)
    threshold = f"--threshold={int(float(exposure) * 10) + 5}"
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", threshold, str(copy)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stdout.splitlines()[-1:] + ran.stderr.splitlines()
    assert "exposure level" in ran.stdout


@needs_systemd
@pytest.mark.skipif(not GENERATOR.exists(), reason="needs systemd-fstab-generator")
def test_the_line_of_fstab_is_a_mount_of_the_network(tmp_path: Path) -> None:
    """After the network, and with our helper (`Type`)."""
    [line] = re.findall(r"echo '(.* dieselfs .*)' >> /etc/fstab", (DEPLOY / "README.md").read_text())
    fstab, units = tmp_path / "fstab", tmp_path / "units"
    fstab.write_text(f"{line}\n")
    units.mkdir()
    environment = {**os.environ, "SYSTEMD_FSTAB": str(fstab)}
    subprocess.run([GENERATOR, *[units] * 3], env=environment, timeout=TIMEOUT_S, check=True)
    unit = units / "data-imagenet.mount"
    assert {"What=dl://imagenet", "Where=/data/imagenet", "Type=dieselfs"} <= set(
        unit.read_text().splitlines()
    )
    assert (units / "remote-fs.target.requires" / unit.name).exists()
    assert complaints(unit) == ""


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*/*.sh")), ids=lambda script: script.name)
def test_scripts_say_how_they_are_called(script: Path) -> None:
    """Programs that bash can parse, with a comment at their head."""
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], timeout=TIMEOUT_S, check=True)
    assert script.read_text().splitlines()[1].startswith("# ")


def test_the_wheel_has_the_files_of_an_administrator() -> None:
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["data-files"]
    for name in ("cluster", "slurm", "systemd"):
        assert folders[f"share/dieselfs/{name}"] == [f"deploy/{name}/*"]


def test_a_cluster_without_hosts_is_a_usage_error() -> None:
    for script in (DEPLOY / "cluster").iterdir():
        ran = subprocess.run(["bash", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ran.returncode == 1 and "PACKAGE" in ran.stderr and "set -euo" not in ran.stderr


_PROGRAMS = {
    "scontrol": "echo localhost",
    "srun": 'exec "$@"',
    "torchrun": "true",
    "dlcmd": 'for place; do :; done; stat -c "%a %U $1 $place" "$place" "${place%/*}" >> "$CALLS"',
}


def test_others_cannot_make_the_folder_in_which_a_job_mounts(tmp_path: Path) -> None:
    """deploy/slurm/job.sbatch without its prolog, with programs that note what they are called with."""
    for name, script in _PROGRAMS.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    (tmp_path / "tmp").mkdir(mode=0o777)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "TMPDIR": str(tmp_path / "tmp"),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "7",
    }
    subprocess.run(
        ["bash", DEPLOY / "slurm/job.sbatch", "imagenet", "train.py"],
        env=variables,
        timeout=TIMEOUT_S,
        check=True,
    )
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert [verb for _, _, verb, _ in calls] == ["mount", "mount", "umount", "umount"]
    for mode, _, _, place in calls[1::2]:  # the folder around the mount point
        assert mode == "700" and place.startswith(f"{tmp_path}/tmp/tmp.")
    assert os.listdir(tmp_path / "tmp") == []


def test_the_lock_has_digests_of_all_that_is_needed() -> None:
    locked: dict[str, list[str]] = {}
    rows = (DEPLOY / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    for row in rows:
        if not row.startswith("#"):
            name, _, rest = row.partition("==")
            assert "--hash=sha256:" in rest, name
            locked.setdefault(name, []).append(rest.split()[0])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served = ("columns", "csi", "etcd", "oidc", "s3", "web")
    for wanted in (*project["dependencies"], *(row for extra in served for row in extras[extra])):
        name, _, least = wanted.partition(",")[0].partition(">=")
        name = name.partition("[")[0]
        assert all(_numbers(version) >= _numbers(least) for version in locked[name]), name
    dockerfile = (DEPLOY / "container" / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*?)(?: \\)?$", dockerfile, re.MULTILINE)
    assert all("--require-hashes" in one or "--no-deps --no-build-isolation" in one for one in installs)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
