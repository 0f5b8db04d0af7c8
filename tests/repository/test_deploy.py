"""systemd accepts the units of `deploy/`, and what it makes of the line of fstab there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
GENERATOR = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")
PROGRAMS = "/opt/dieselfs/bin/"
TIMEOUT_S = 60

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


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


@pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda unit: unit.name)
def test_units_are_valid(unit: Path, tmp_path: Path) -> None:
    """A template is tried with a name, and any program stands for ours, which is not installed there."""
    text = unit.read_text()
    programs = re.findall(rf"^ExecStart={PROGRAMS}(\S+)", text, re.MULTILINE)
    assert programs and all(f"{name} = " in (REPOSITORY / "pyproject.toml").read_text() for name in programs)
    copy = tmp_path / unit.name.replace("@.", "@imagenet.")
    copy.write_text(re.sub(rf"{PROGRAMS}\S+", sys.executable, text))
    assert complaints(copy) == ""


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
