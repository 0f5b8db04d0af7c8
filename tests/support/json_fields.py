"""The fields of the lines that `--json` prints: the type and the meaning of each. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEXT, WHOLE, NUMBER, YES_NO = "string", "integer", "number", "boolean"
TEXTS = "array of strings"


@dataclass(frozen=True, slots=True)
class Field:
    """`type`: of the value, as the page says it; `schema`: of a value with parts."""

    type: str
    meaning: str
    is_nullable: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)

    def json_schema(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(self.schema)
        if self.type == TEXTS:
            found = {"type": "array", "items": {"type": "string"}}
        elif not found:
            found = {"type": self.type}
        if self.is_nullable:
            found["type"] = [found["type"], "null"]
        return {**found, "description": self.meaning}


def _object(**properties: str) -> dict[str, Any]:
    types = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": types, "required": list(types), "additionalProperties": False}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(kind: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": kind}


_EXTENT = _object(place=WHOLE, length=WHOLE, chunk=TEXT, offset=WHOLE, blake3=TEXT)
_KEY = _object(key_id=TEXT, created_s=WHOLE, expires_s=WHOLE, grants="object")
_WARMTH = _object(pinned_bytes=WHOLE, wanted_bytes=WHOLE, damaged_chunks=WHOLE, share=NUMBER)

FIELDS: Mapping[str, Field] = {
    # -- all verbs
    "type": Field(TEXT, "The kind of line."),
    "exit_code": Field(WHOLE, "The exit code of the command."),
    "error": Field(TEXT, "The error that ended the command."),
    "reason": Field(TEXT, "Why an item failed."),
    "url": Field(TEXT, "Address of the web page, with a token that logs one browser in, once."),
    "fingerprint": Field(TEXT, "SHA-256 of the certificate of the page, in hexadecimal; empty without TLS."),
    "expires_s": Field(NUMBER, "Seconds until the token is worthless."),
    "dry_run": Field(YES_NO, "Whether nothing was changed."),
    "seconds": Field(NUMBER, "Duration, in seconds."),
    # -- names
    "dataset": Field(TEXT, "Name of a dataset, or NAME@TAG."),
    "follows": Field(TEXT, "The remote, dataset and tag that a mirror follows."),
    "generations_behind": Field(WHOLE, "Generations of the origin that a mirror does not show yet."),
    "lag_s": Field(NUMBER, "Seconds since a mirror showed the newest generation of its origin."),
    "mirrors": Field(WHOLE, "Number of mirrors."),
    "behind": Field(WHOLE, "Number of mirrors that are further behind than --max-lag."),
    "signer_pin": Field(TEXT, "Pin of the servers that have signed the snapshot, hexadecimal; empty without one."),
    "target_dataset": Field(TEXT, "Name of the dataset that is copied to."),
    "remote": Field(TEXT, "Name of the site of the source; empty for that of the settings."),
    "target_remote": Field(TEXT, "Name of the site that is copied to; empty for that of the settings."),
    "path": Field(TEXT, "Path in the dataset; of a failure also a local one."),
    "source": Field(TEXT, "Local path, or source and record; of a copy its path before."),
    "destination": Field(TEXT, "Local path."),
    "columns": Field(TEXTS, "Names of columns."),
    "value_type": Field(TEXT, "Type of the values of a column, as Arrow names it."),
    "target": Field(TEXT, "Target of a link; of an export, its file or folder."),
    "old": Field(TEXT, "Path before."),
    "new": Field(TEXT, "Path after."),
    "first_source": Field(TEXT, "Source of the first entry."),
    "first_path": Field(TEXT, "Path of the first entry."),
    "folder": Field(TEXT, "A folder: local, or in the dataset."),
    "image": Field(TEXT, "Path of the image."),
    "format": Field(TEXT, "Format of the export."),
    # -- entries
    "kind": Field(
        TEXT,
        "`file`, `folder`, `link`, `chunk`, `metadata`, `snapshot`, `clock`, `dataset`, `user`; of a key `x25519` or "
        "`argon2id`.",
    ),
    "size": Field(WHOLE, "Bytes of a file, or of the target of a link."),
    "mode": Field(TEXT, "Permissions, as octal text."),
    "mtime_ns": Field(WHOLE, "Time of change, in nanoseconds since 1970."),
    "change": Field(TEXT, "`added`, `removed`, `changed` or `attributes`."),
    "position": Field(WHOLE, "Position in the epoch, from 0."),
    "extents": Field(
        "array of objects",
        "Parts of a file: `place` in the file, `length`, `chunk`, `offset` in it, `blake3`.",
        schema=_array(_EXTENT),
    ),
    # -- bisect
    "run": Field(WHOLE, "Number of a run of the command, from 1."),
    "left_out": Field(TEXT, "Positions of the whole order that the run left out, as `100-199+300-399`."),
    "verdict": Field(TEXT, "`good`, `bad` or `unknown`."),
    "returned": Field(WHOLE, "Exit code of the run; null if it was ended.", is_nullable=True),
    "metric": Field(NUMBER, "Last value of the metric; null without one, or if it is not finite.", is_nullable=True),
    "cause": Field(WHOLE, "Number of the cause, from 1; its files are bad together."),
    "is_decided": Field(YES_NO, "Whether this file is needed; if not, one of those of its cause is."),
    "runs_max": Field(WHOLE, "The most runs of the command."),
    "runs": Field(WHOLE, "Runs that were made."),
    "unfinished": Field(TEXT, "Why the search has ended early."),
    "causes": Field(WHOLE, "Causes that were found."),
    # -- proofs
    "step": Field(WHOLE, "Step of the epoch, from 0."),
    "is_there": Field(YES_NO, "Whether the generation has this file."),
    "orders": Field(WHOLE, "Orders of which the proof states something."),
    "stated_s": Field(WHOLE, "When the proof was made, in seconds since 1970."),
    "signer": Field(TEXT, "Name of the user who has signed."),
    "public_key": Field(TEXT, "Key of that user, in hexadecimal."),
    "names_digest": Field(TEXT, "HMAC of the names and the folder, of an encrypted dataset, in hexadecimal."),
    "server_key": Field(TEXT, "Key of the servers that have signed the snapshot, in hexadecimal."),
    "proof": Field(TEXT, "The whole proof."),
    "others": Field(WHOLE, "Cursors of other samples, which were left out."),
    "is_compared": Field(YES_NO, "Whether the key is the one that was asked for."),
    # -- totals
    "entries": Field(WHOLE, "Number of files, folders and links."),
    "files": Field(WHOLE, "Number of files."),
    "folders": Field(WHOLE, "Number of folders."),
    "bytes": Field(WHOLE, "Bytes of contents."),
    "image_bytes": Field(WHOLE, "Bytes of the image."),
    "chunks": Field(WHOLE, "Number of chunks."),
    "datasets": Field(WHOLE, "Number of datasets."),
    "locations": Field(WHOLE, "Number of locations shown."),
    "stored": Field(WHOLE, "Entries stored by this command."),
    "stored_bytes": Field(WHOLE, "Their bytes; of a dataset or user: bytes of all chunks, until a purge."),
    "written": Field(WHOLE, "Entries written by this command."),
    "written_bytes": Field(WHOLE, "Their bytes; of a dataset or user: bytes that servers have received."),
    "skipped": Field(WHOLE, "Entries that were there already; of an epoch: skipped files."),
    "skipped_bytes": Field(WHOLE, "Their bytes."),
    "sources": Field(WHOLE, "Number of sources; of a copy, `old` and `new` are of the first."),
    "copied": Field(WHOLE, "Entries copied by this command."),
    "shared_bytes": Field(WHOLE, "What files with equal bytes share, and is not stored again."),
    "object_bytes": Field(WHOLE, "What the chunks of the dataset take in the object store."),
    "compressed_bytes": Field(WHOLE, "What the stored files take after compression."),
    "copied_bytes": Field(WHOLE, "Their bytes."),
    "deleted": Field(WHOLE, "Deleted entries."),
    "failed": Field(WHOLE, "Failed items."),
    "is_damaged": Field(YES_NO, "Whether stored bytes are corrupt."),
    "attached": Field(WHOLE, "Files attached by this command."),
    "attached_bytes": Field(WHOLE, "Their bytes."),
    "unreadable": Field(WHOLE, "Sources that are not what they were."),
    "mark": Field(TEXT, "Version of a source."),
    "added": Field(WHOLE, "Entries that are only in the second tree."),
    "removed": Field(WHOLE, "Entries that are only in the first tree."),
    "changed": Field(WHOLE, "Entries with other content, type or target."),
    "attributes": Field(WHOLE, "Entries with another mode or time."),
    # -- datasets and tags
    "generation": Field(WHOLE, "Generation of the dataset."),
    "updated_ns": Field(WHOLE, "Time of the generation, in nanoseconds since 1970."),
    "dataset_id": Field(TEXT, "ID of the dataset, hexadecimal."),
    "server": Field(TEXT, "Address of the server."),
    "lost": Field(TEXTS, "Datasets whose metadata is lost."),
    "tag": Field(TEXT, "Name of a tag."),
    "tags": Field(
        f"{TEXTS}, or integer",
        "Names of tags; of `tag ls`: their number.",
        schema={"anyOf": [{"type": WHOLE}, _array({"type": TEXT})]},
    ),
    "digest": Field(TEXT, "Digest, hexadecimal."),
    "readers": Field(TEXTS, "Mounts and cache daemons that read the dataset."),
    "quick": Field(YES_NO, "Whether digests of the snapshot were believed."),
    # -- maintenance
    "what": Field(TEXT, "The problem."),
    "is_mended": Field(YES_NO, "Whether it was repaired."),
    "deep": Field(YES_NO, "Whether every byte was read."),
    "repair": Field(YES_NO, "Whether problems were repaired."),
    "problems": Field(WHOLE, "Number of problems."),
    "unmended": Field(WHOLE, "Number of problems that are left."),
    "removed_chunks": Field(WHOLE, "Chunks removed."),
    "copied_chunks": Field(WHOLE, "Attached chunks whose bytes were copied."),
    "rewritten_chunks": Field(WHOLE, "Chunks rewritten: without their holes, or with classes in proportion."),
    "kept_chunks": Field(WHOLE, "Chunks that stay as they are."),
    "written_chunks": Field(WHOLE, "New chunks."),
    "needed_bytes": Field(WHOLE, "Bytes that copies take until a purge."),
    "waiting_chunks": Field(WHOLE, "Dead chunks within the grace time."),
    "freed_bytes": Field(WHOLE, "Bytes freed."),
    "grace_s": Field(WHOLE, "Grace time, in seconds."),
    "held_by": Field(TEXTS, "Readers and tags that hold chunks."),
    "damaged_chunks": Field(WHOLE, "Chunks with corrupt bytes."),
    "since_s": Field(WHOLE, "Only chunks since this time, in seconds since 1970.", is_nullable=True),
    # -- mounts and caches
    "mountpoint": Field(TEXT, "Folder of a mount."),
    "mounts": Field(WHOLE, "Number of mounts."),
    "disk": Field(TEXT, "Folder of the disk tier."),
    "used_ns": Field(WHOLE, "Time of the last use, in nanoseconds since 1970."),
    "is_in_use": Field(YES_NO, "Whether a process of this machine reads the dataset."),
    "caches": Field(WHOLE, "Number of cache daemons."),
    "process": Field(WHOLE, "Process ID.", is_nullable=True),
    "daemon": Field(WHOLE, "Process ID of the daemon that serves the mount.", is_nullable=True),
    "options": Field(TEXTS, "Mount options."),
    "view": Field(TEXT, "How the kernel shows the files."),
    "memory_advice": Field(
        TEXT, "What the memory of the mount is too little for, and a size that is enough; or empty."
    ),
    "view_reason": Field(TEXT, "Why no better view is possible, or empty."),
    "is_stale": Field(YES_NO, "Whether the mount is dead."),
    "restarts": Field(WHOLE, "Daemons started after one died."),
    "upgrades": Field(WHOLE, "Daemons replaced on request."),
    "resends": Field(YES_NO, "Whether readers survive the death of the daemon."),
    "trouble": Field(TEXT, "The last failure of its processes, or why a source cannot be read; or empty."),
    "last_error": Field(TEXT, "The last failed read, or empty."),
    "following": Field(TEXT, "With --follow: the generation, and the state of the next one; else empty."),
    "writes": Field(TEXT, "With --write: the write folder, what is stored of it, and what is not; else empty."),
    "job": Field(TEXT, "Name of the job, or empty.", is_nullable=True),
    "node": Field(TEXT, "Name of this node in the job."),
    "nodes": Field(
        "integer, or object",
        "Number of nodes of the job; of `warm`: the warmth of each, by name.",
        schema={"anyOf": [{"type": WHOLE}, _map(_WARMTH)]},
    ),
    "members": Field(TEXTS, "Nodes of the job that are here; null if unknown.", is_nullable=True),
    "unknown": Field(TEXTS, "Nodes that do not answer."),
    "pinned_bytes": Field(WHOLE, "Bytes in memory."),
    "wanted_bytes": Field(WHOLE, "Bytes that memory has room for."),
    "dataset_bytes": Field(WHOLE, "Bytes of the dataset."),
    "share": Field(NUMBER, "Share in memory, from 0 to 1."),
    # -- orders
    "seed": Field(WHOLE, "Seed of the epochs."),
    "epoch": Field(WHOLE, "Number of the epoch."),
    "group_chunks": Field(WHOLE, "Chunks that are mixed with each other."),
    "positions": Field(WHOLE, "Positions in the epoch."),
    "rank": Field(WHOLE, "The reader."),
    "world": Field(WHOLE, "Number of readers."),
    "batch": Field(WHOLE, "Files of a step, of all readers."),
    "start": Field(WHOLE, "First position."),
    "cursor": Field(TEXT, "Cursor to continue from."),
    "log": Field(TEXT, "SHA-256 of the log of an opportunistic order, or its HMAC."),
    "groups": Field(WHOLE, "Number of groups."),
    "entropy_ratio": Field(NUMBER, "Entropy of the order, relative to a full shuffle."),
    "mean_distance": Field(NUMBER, "Mean distance moved, relative to all positions."),
    "folder_repeats": Field(NUMBER, "Share of files that follow one of their folder."),
    "folder_repeats_expected": Field(NUMBER, "The same for a full shuffle."),
    "group_bytes_max": Field(WHOLE, "Bytes of the largest group."),
    "group_bytes_mean": Field(NUMBER, "Bytes of a group on average."),
    "buffered_bytes_max": Field(WHOLE, "Most bytes that waited to be drawn."),
    # -- users and servers
    "user": Field(TEXT, "Name of a user."),
    "users": Field(WHOLE, "Number of users."),
    "key": Field(TEXT, "The text of a key, which is secret."),
    "key_id": Field(TEXT, "ID of a key."),
    "old_key_id": Field(TEXT, "ID of the replaced key."),
    "key_file": Field(TEXT, "Path of the key file."),
    "out": Field(TEXT, "File of the new key.", is_nullable=True),
    "keys": Field("array of objects", "`key_id`, `created_s`, `expires_s` (0: never), `grants`.", schema=_array(_KEY)),
    "provider_groups": Field(TEXTS, "Groups of which a user is by the identity provider."),
    "until_s": Field(WHOLE, "When the login ends unless it is renewed, in seconds since 1970."),
    "is_barred": Field(YES_NO, "Whether the keys of the user are refused."),
    "grant_datasets": Field(TEXTS, "The datasets of a token."),
    "grants": Field("object", "Right by dataset.", schema=_map({"type": TEXT})),
    "right": Field(TEXT, "`read`, `write`, `admin` or `none`."),
    "group": Field(TEXT, "Name of a group of users."),
    "owner": Field(TEXT, "User to whose quota a dataset counts, or empty."),
    "limits": Field(WHOLE, "Number of limits."),
    "bytes_per_s": Field(WHOLE, "Bytes per second of a user; null: no limit.", is_nullable=True),
    "requests_per_s": Field(WHOLE, "Requests per second of a user; null: no limit.", is_nullable=True),
    "job_bytes_per_s": Field(WHOLE, "Bytes per second of each job of a user; null: no limit.", is_nullable=True),
    "account": Field(TEXT, "`user:NAME`, `user:*` or `dataset:NAME`."),
    "quotas": Field(WHOLE, "Number of quotas."),
    "quota_bytes": Field(WHOLE, "The most bytes of chunks that may be stored; null: no limit.", is_nullable=True),
    "quota_files": Field(WHOLE, "The most files that may be stored; null: no limit.", is_nullable=True),
    "read_bytes": Field(WHOLE, "Bytes that servers have sent, of a dataset or to a user."),
    "group_users": Field(TEXTS, "Names of the users of a group."),
    "servers": Field(WHOLE, "Number of servers."),
    "address": Field(TEXT, "Address of a server."),
    "version": Field(TEXT, "Version of dieselfs."),
    "started_s": Field(NUMBER, "Time of start, in seconds since 1970."),
    "store": Field(TEXT, "Object store."),
    "metadata": Field(TEXT, "Metadata store."),
    "metrics": Field("object", "[Counters](counters.md) by name.", schema=_map({"type": NUMBER})),
    # -- checks
    "state": Field(TEXT, "`ok`, `warning` or `failure`."),
    "statement": Field(TEXT, "Signed statement of freshness of the servers: one line."),
    "fix": Field(TEXT, "What to change, or empty."),
    "ok": Field(WHOLE, "Checks without a fault."),
    "warnings": Field(WHOLE, "Checks that cost speed or comfort."),
    "failures": Field(WHOLE, "Checks that must be mended."),
    # -- what daemons do
    "about": Field("object", "Which process it is: labels of its metrics.", schema=_map({"type": TEXT})),
    "families": Field(
        "array of objects",
        "Metrics: `kind`, `name` in OpenMetrics, `help`, `unit`, `labels`; `samples` have labels and a value.",
        schema=_array({"type": "object"}),
    ),
    "processes": Field(WHOLE, "Number of daemons and servers."),
    "is_unmounted": Field(
        YES_NO, "Whether it only serves open files of an earlier mount of its path, until these are closed."
    ),
    "activity": Field(
        "object",
        "What it does: `seconds` watched, rates for a second, times in seconds.",
        schema={"type": "object"},
    ),
    "limit": Field(TEXT, "What limits the training, in one word."),
    "text": Field(TEXT, "What was seen or found."),
    "advice": Field(TEXT, "The one thing to change."),
    "subject": Field(TEXT, "The folder of the mount, or `job` and its name."),
    "plan": Field(
        "object",
        "The plan of the epoch: `order`, `seed`, `epoch`, `group`, `positions`; null if none was read.",
        is_nullable=True,
        schema={"type": "object"},
    ),
    "began_s": Field(NUMBER, "Its begin, in seconds since 1970."),
    "totals": Field("object", "Sums over the epoch.", schema={"type": "object"}),
    "quality": Field(
        "object", "Measures of its order, as of `shuffle`.", is_nullable=True, schema={"type": "object"}
    ),
    "ranks": Field("array of objects", "The progress of each reader.", schema=_array({"type": "object"})),
    "daemons": Field(
        "integer, or array of objects",
        "Sums of each daemon; of a summary: how many there are.",
        schema={"anyOf": [{"type": WHOLE}, _array({"type": "object"})]},
    ),
    "points": Field(
        "array of objects",
        "Rates in each interval, which ends at `end_s`.",
        schema=_array({"type": "object"}),
    ),
    "fault": Field(TEXT, "The fault that was rehearsed."),
    "reads": Field(WHOLE, "Files that readers have read, or tried to."),
    "wrong": Field(WHOLE, "Reads that gave wrong bytes."),
    "worst_s": Field(NUMBER, "The longest read, in seconds."),
    "errors": Field(TEXTS, "The first errors of readers."),
    "remedy": Field(TEXT, "What let the readers continue."),
    "is_as_promised": Field(YES_NO, "Whether readers saw what the documentation says."),
    "rehearsed": Field(WHOLE, "Faults that were rehearsed."),
    "broken": Field(WHOLE, "Of these, faults that readers saw more of than promised."),
    "refused": Field(WHOLE, "Faults that this machine cannot rehearse."),
    "epoch_kind": Field(TEXT, "first, or later: one of those after it."),
    "parts_s": Field(
        "object",
        "Seconds that each part alone needs, by name.",
        schema=_map({"type": NUMBER}),
    ),
    "waiting_s": Field(NUMBER, "How long the training waits for data, in seconds."),
    "from_servers_bytes": Field(NUMBER, "Bytes that the servers send to all nodes."),
    "from_peers_bytes": Field(NUMBER, "Bytes that the nodes send each other."),
    "kept_share": Field(NUMBER, "The part of the data that stays in the page cache of each node, 0 to 1."),
    "resident_share": Field(NUMBER, "The part of the data that stays in some memory of the job, 0 to 1."),
    "group_bytes": Field(WHOLE, "Memory for the groups that are read, in bytes."),
    "chunks_from": Field(TEXT, "Where chunks were fetched from to measure that."),
    "speeds": Field(
        "object",
        "Seconds of a first and of a later epoch: to begin, for each file and byte; bytes fetched per second.",
        schema={"type": "object"},
    ),
    "measured_s": Field(WHOLE, "When it was measured, in seconds since 1970."),
    "rounds": Field(WHOLE, "Rounds that were measured."),
    "speeds_file": Field(TEXT, "The file for `plan`."),
    "form": Field(TEXT, "small or large: the size of the files."),
    "reader": Field(TEXT, "What was read: the mount, plain files, a tar file, or LMDB."),
    "first_files_s": Field(WHOLE, "Files per second, with nothing in the page cache."),
    "later_files_s": Field(WHOLE, "Files per second, with everything in memory."),
    # -- settings and completion
    "names": Field(TEXTS, "Names of recipients of the key of a dataset."),
    "recipient": Field(TEXT, "Public key of a user, for `dlcmd key add`."),
    "recipients": Field(WHOLE, "Number of recipients of the key of a dataset."),
    "identity": Field(TEXT, "File of the private key for encrypted datasets."),
    "left": Field(TEXT, "What `dlcmd erase` cannot remove, and where it is."),
    "name": Field(TEXT, "Name of a setting, a step, a column, a dataset, a user or a recipient."),
    "value": Field(TEXT, "Value of a setting.", is_nullable=True),
    "origin": Field(TEXT, "`option`, `environment`, `file` or `default`."),
    "where": Field(TEXT, "The option, variable or file.", is_nullable=True),
    "settings": Field(WHOLE, "Number of settings."),
    "file": Field(TEXT, "The configuration file, or that of a snapshot."),
    "file_bytes": Field(WHOLE, "Bytes of the file of a snapshot, or of several."),
    "snapshots": Field(WHOLE, "Number of snapshots."),
    "generations": Field(WHOLE, "Number of generations."),
    "found": Field(TEXT, "What the step found."),
    "steps": Field(WHOLE, "Number of steps."),
    "shell": Field(TEXT, "Name of the shell."),
    "script": Field(TEXT, "Its completion script."),
}  # fmt: skip
