"""One user of each right attacks with everything that the protocol has; another one reads and writes meanwhile,
and after `kill -9`, while the server applies chunks of the attackers."""

import os
from collections.abc import Sequence
from pathlib import Path

from dieselfs.limits import GIB
from lab.attack import BACKLOG_CHUNKS, attack, percentile
from tests.support.redis import needs_redis, running_redis

ATTACK_S = float(os.environ.get("DIESELFS_ATTACK_S", "5"))
"""CONTRIBUTING has the long form."""
CALL_S_MAX = 1.0
CALLS_MIN, CALLS_OF_LONG_FORM = 8, 100
RESIDENT_BYTES_MAX = 2 * GIB
RESTART_S_MAX = 5.0


def check(folder: Path, options: Sequence[str] = ()) -> None:
    suffered = attack(folder / "server", ATTACK_S, options)
    for kind, took_s in (("reads", suffered.reads_s), ("writes", suffered.writes_s)):
        print(
            f"{len(took_s)} {kind}, median {percentile(took_s, 0.5):.3f} s, 99 % {percentile(took_s, 0.99):.3f} s"
        )
    restart = f"restart {suffered.restart_s:.1f} s, whole after {suffered.whole_s:.1f} s"
    print(f"{suffered.resident_bytes / GIB:.2f} GiB, {restart}")
    assert not suffered.failures
    for took_s in (suffered.reads_s, suffered.writes_s):
        assert len(took_s) >= CALLS_MIN
        share = 0.99 if len(took_s) >= CALLS_OF_LONG_FORM else 0.9  # few calls have no 99th percentile
        assert percentile(took_s, share) < CALL_S_MAX
    assert suffered.resident_bytes < RESIDENT_BYTES_MAX
    assert suffered.restart_s < RESTART_S_MAX
    assert suffered.is_served_first and suffered.backlog_chunks == BACKLOG_CHUNKS


def test_nobody_waits_for_attackers(tmp_path: Path) -> None:
    check(tmp_path)


@needs_redis
def test_nobody_waits_for_attackers_with_redis(tmp_path: Path) -> None:
    with running_redis(tmp_path / "redis") as redis:
        state = "--state", str(tmp_path / "state")
        check(tmp_path, ("--metadata", f"redis://127.0.0.1:{redis.port}/0", *state))
