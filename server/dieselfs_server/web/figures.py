"""The figures that the page draws, from two reports of a server's metrics. No I/O."""

from collections import Counter
from collections.abc import Iterable

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.activity import Activity, ServerActivity, activity
from dieselfs.telemetry.registry import Family, Report
from dieselfs_server.web.charts import Sample

SERVER_SERIES = (
    *("calls", "failed", "sent_bytes", "received_bytes", "store_bytes"),
    *("answer_s", "answer_p99_s", "store_s", "busy", "connections", "cpu", "shared_share"),
)
LOCAL_SERIES = ("mount_bytes", "mount_reads", "mount_waiting", "mount_hit_share")
SERIES = SERVER_SERIES + LOCAL_SERIES


def server_sample(before: Report | None, after: Report, seconds: float) -> Sample:
    """The rates and latencies of a server over `seconds`; `shared_share`: of its range requests, those that the read of
    another served.
    """
    now = activity(0, before, after, seconds)
    assert isinstance(now, ServerActivity)
    sample: dict[str, float | None] = {
        name: getattr(now, name) for name in SERVER_SERIES if hasattr(now, name)
    }
    sample["answer_p99_s"] = quantile(before, after, catalogue.RPC_ANSWERED_S, 0.99)
    asked, shared = (
        after.total(family) - (before.total(family) if before else 0)
        for family in (catalogue.READING_REQUESTS, catalogue.READING_SHARED_REQUESTS)
    )
    sample["shared_share"] = shared / asked if asked > 0 else None
    return sample


def quantile(before: Report | None, after: Report, family: Family, share: float) -> float | None:
    """The bound of a histogram below which `share` of the new values are, over all labels; None without any."""
    new: Counter[float] = Counter()
    for report, sign in ((after, 1), (before, -1)):
        for _, value in report.values(family) if report else ():
            for bound, below in (*value["le"].items(), ("inf", value["count"])):
                new[float(bound)] += sign * below
    count = new[float("inf")]
    if count <= 0:
        return None
    finite = [bound for bound in new if bound != float("inf")]
    return min((bound for bound in finite if new[bound] >= share * count), default=max(finite))


def local_sample(daemons: Iterable[Activity]) -> Sample:
    """The mounts and caches of this machine together."""
    seen = [*daemons]
    shares = [each.hit_share for each in seen if each.hit_share is not None]
    return {
        "mount_bytes": sum(each.fetched_bytes for each in seen) if seen else None,
        "mount_reads": sum(each.reads for each in seen) if seen else None,
        "mount_waiting": sum(each.waiting for each in seen) if seen else None,
        "mount_hit_share": sum(shares) / len(shares) if shares else None,
    }


def local_view(daemon: Activity, infos: Report) -> dict[str, object]:
    """A mount or cache of this machine, as the page shows it."""
    suspected = infos.info(catalogue.JOB_SUSPECTED) or ()
    return {
        "process": daemon.process,
        "about": dict(daemon.about),
        "fetched_bytes": daemon.fetched_bytes,
        "reads": daemon.reads,
        "waiting": daemon.waiting,
        "failed": daemon.failed,
        "hit_share": daemon.hit_share,
        "memory_used_bytes": daemon.memory_used_bytes,
        "memory_granted_bytes": daemon.memory_granted_bytes,
        "cpu": daemon.cpu,
        "plans": [
            {
                "epoch": plan.epoch,
                "position": plan.position,
                "positions": plan.positions,
                "left_s": plan.left_s,
            }
            for plan in daemon.plans
        ],
        "suspected": [str(node) for node in suspected],
    }
