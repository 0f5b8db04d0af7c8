"""Whether Redis keeps the metadata over a restart and under pressure, from what its nodes say. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple

from dieselfs.rpc.records import OK, WARNING, CheckRecord

NAME = "metadata"
_SETTINGS = "docs/reference/metadata-keys.md has the settings"


class NodeSettings(NamedTuple):
    """What is known of one node; None: its user may not ask for it."""

    has_log: bool | None
    log_failed: bool
    fsync: str | None
    eviction: str | None


def node_settings(info: bytes | None, fsync: str | None) -> NodeSettings:
    """`info`: the reply of `INFO`; `fsync`: the setting `appendfsync`. None where the user lacks the permission."""
    if info is None:
        return NodeSettings(None, False, fsync, None)
    fields = _fields(info)
    return NodeSettings(
        fields.get("aof_enabled") == "1",
        fields.get("aof_last_write_status", "ok") != "ok",
        fsync,
        fields.get("maxmemory_policy"),
    )


def run_id(info: bytes) -> bytes:
    """The ID of this run of Redis, another one after each start, from the reply of `INFO server`."""
    return _fields(info).get("run_id", "").encode()


def _fields(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)


def checks(nodes: Mapping[str, NodeSettings]) -> list[CheckRecord]:
    """One for each fault, with the nodes that have it; or one that all is well."""
    faults: dict[tuple[str, str], list[str]] = {}
    for node, known in nodes.items():
        for fault in _faults(known):
            faults.setdefault(fault, []).append(node)
    found = [
        CheckRecord(NAME, WARNING, f"Redis {', '.join(which)}: {text}", fix)
        for (text, fix), which in faults.items()
    ]
    policies = ", ".join(sorted({known.fsync or "unknown" for known in nodes.values()}))
    return found or [CheckRecord(NAME, OK, f"Redis {', '.join(nodes)}: appendonly, appendfsync {policies}")]


def _faults(known: NodeSettings) -> list[tuple[str, str]]:
    if known.has_log is None:
        fix = f"allow +info to its user; {_SETTINGS}"
        return [("its user may not ask whether it keeps data over a restart, nor notice a restart", fix)]
    found = []
    if not known.has_log:
        text = "appendonly is off: each restart loses the metadata, and needs dlcmd rebuild"
        found.append((text, f"CONFIG SET appendonly yes, and the same in redis.conf; {_SETTINGS}"))
    elif known.log_failed:
        found.append(("the last write of its append-only file failed", "look at its log and its disk"))
    elif known.fsync == "no":
        text = "appendfsync is no: a power failure loses some 30 s of metadata"
        found.append((text, "CONFIG SET appendfsync everysec, and the same in redis.conf"))
    if known.eviction not in (None, "noeviction"):
        text = f"maxmemory-policy is {known.eviction}: it removes metadata when its memory is full"
        found.append((text, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"))
    return found
