"""`bench rivals --quick`: each rival that is installed reads over a slow link, of any speed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bench.rivals.juicefs import program_path
from bench.rivals.rivals import CONNECTION
from dieselfs_client.mount.points.mount_table import MOUNTINFO, parse_mountinfo
from lab.network import why_not
from lab.s3_server import missing_gateway
from tests.support.buckets import needs_gateway
from tests.support.redis import needs_redis

TIMEOUT_S = 900.0
"""Half a minute on an idle machine."""
SHARE, WORK = "0.01", "files of 4,096 bytes, 4 readers, os.open"
"""Of the data, and of the trials: the one with the most sides, as dieselfs also reads in the order of plans."""
INSTALLED = {
    "CephFS": missing_gateway() is None and all(map(shutil.which, ("ceph-mds", "ceph-fuse"))),
    "JuiceFS": missing_gateway() is None and program_path() is not None,
    "GlusterFS": shutil.which("glusterd") is not None,
}

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 30), needs_gateway, needs_redis]
pytest.importorskip("torch", reason="the training needs torch")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """By title, of those that a run has kept."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    kept = tmp_path_factory.mktemp("rivals")
    place = tmp_path_factory.mktemp("r")
    command = [
        sys.executable,
        "-m",
        "bench",
        "rivals",
        "--quick",
        "--share",
        SHARE,
        "--only",
        f"{WORK}|{CONNECTION}",
        "--folder",
        str(place),
        "--keep",
        str(kept),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.terminate()  # after a timeout it still removes its mounts and networks
    assert process.returncode == 0, errors
    results = json.loads((kept / "rivals.json").read_text())["results"]
    assert results[0]["title"].startswith(CONNECTION)
    yield {result["title"]: result for result in results[1:]}
    mounts = [each.mountpoint for each in parse_mountinfo(MOUNTINFO.read_bytes())]
    left = [each for each in mounts if f"dieselfs-{process.pid}-" in each or str(place) in each]
    assert not left, "mounts are left"


def test_each_rival_does_the_work_and_its_processor_time_is_known(trials: dict[str, dict[str, Any]]) -> None:
    ((title, trial),) = trials.items()
    assert WORK in title
    installed = {name for name, is_installed in INSTALLED.items() if is_installed}
    sides = {side["name"]: side for side in trial["sides"]}
    assert {"dieselfs, rados", "dieselfs, S3", *installed} <= sides.keys(), trial["left_out"]
    for side in sides.values():
        assert side["runs"][0]["duration_s"] > 0
        assert "client" in side["runs"][0]["parts"] or "local" in side["name"], side


def test_what_is_not_installed_is_left_out_with_the_reason(trials: dict[str, dict[str, Any]]) -> None:
    missing = {name for name, is_installed in INSTALLED.items() if not is_installed}
    for trial in trials.values():
        assert trial["left_out"].keys() == missing, trial["left_out"]
