"""The lines that `--json` prints: the table of verbs and fields, its JSON Schema, and its page. No I/O.

`python -m dieselfs_tools.json_schema` prints the tables of docs/reference/json.md, and with `--schema` the file
docs/reference/json-schema.json.
"""

import json
import sys
from collections.abc import Iterator, Mapping
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
_KEY = _object(key_id=TEXT, created_s=WHOLE, expires_s=WHOLE)
_WARMTH = _object(pinned_bytes=WHOLE, wanted_bytes=WHOLE, damaged_chunks=WHOLE, share=NUMBER)

FIELDS: Mapping[str, Field] = {
    # -- all verbs
    "type": Field(TEXT, "The kind of line."),
    "exit_code": Field(WHOLE, "The exit code of the command."),
    "error": Field(TEXT, "The error that ended the command."),
    "reason": Field(TEXT, "Why an item failed."),
    "dry_run": Field(YES_NO, "Whether nothing was changed."),
    "seconds": Field(NUMBER, "Duration, in seconds."),
    # -- names
    "dataset": Field(TEXT, "Name of a dataset, or NAME@TAG."),
    "target_dataset": Field(TEXT, "Name of the dataset that is copied to."),
    "path": Field(TEXT, "Path in the dataset; of a failure also a local one."),
    "source": Field(TEXT, "Local path, or source and record; of a copy its path before."),
    "destination": Field(TEXT, "Local path."),
    "target": Field(TEXT, "Target of a link; of an export, its file or folder."),
    "old": Field(TEXT, "Path before."),
    "new": Field(TEXT, "Path after."),
    "first_source": Field(TEXT, "Source of the first entry."),
    "first_path": Field(TEXT, "Path of the first entry."),
    "folder": Field(TEXT, "A folder: local, or in the dataset."),
    "image": Field(TEXT, "Path of the image."),
    "format": Field(TEXT, "Format of the export."),
    # -- entries
    "kind": Field(TEXT, "`file`, `folder` or `link`; of a problem: `chunk`, `file`, `metadata`, `snapshot`, `clock`."),
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
    "stored_bytes": Field(WHOLE, "Their bytes."),
    "written": Field(WHOLE, "Entries written by this command."),
    "written_bytes": Field(WHOLE, "Their bytes."),
    "skipped": Field(WHOLE, "Entries that were there already; of an epoch: skipped files."),
    "skipped_bytes": Field(WHOLE, "Their bytes."),
    "sources": Field(WHOLE, "Number of sources; of a copy, `old` and `new` are of the first."),
    "copied": Field(WHOLE, "Entries copied by this command."),
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
    "rewritten_chunks": Field(WHOLE, "Chunks rewritten without their holes."),
    "waiting_chunks": Field(WHOLE, "Dead chunks within the grace time."),
    "freed_bytes": Field(WHOLE, "Bytes freed."),
    "grace_s": Field(WHOLE, "Grace time, in seconds."),
    "held_by": Field(TEXTS, "Readers and tags that hold chunks."),
    "damaged_chunks": Field(WHOLE, "Chunks with corrupt bytes."),
    "since_s": Field(WHOLE, "Only chunks since this time, in seconds since 1970.", is_nullable=True),
    # -- mounts and caches
    "mountpoint": Field(TEXT, "Folder of a mount."),
    "mounts": Field(WHOLE, "Number of mounts."),
    "caches": Field(WHOLE, "Number of cache daemons."),
    "process": Field(WHOLE, "Process ID.", is_nullable=True),
    "daemon": Field(WHOLE, "Process ID of the daemon that serves the mount.", is_nullable=True),
    "options": Field(TEXTS, "Mount options."),
    "view": Field(TEXT, "How the kernel shows the files."),
    "view_reason": Field(TEXT, "Why no better view is possible, or empty."),
    "is_stale": Field(YES_NO, "Whether the mount is dead."),
    "restarts": Field(WHOLE, "Daemons started after one died."),
    "upgrades": Field(WHOLE, "Daemons replaced on request."),
    "resends": Field(YES_NO, "Whether readers survive the death of the daemon."),
    "trouble": Field(TEXT, "The last failure of its processes, or why a source cannot be read; or empty."),
    "last_error": Field(TEXT, "The last failed read, or empty."),
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
    "dataset_bytes": Field(WHOLE, "Bytes of the dataset.", is_nullable=True),
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
    "keys": Field("array of objects", "`key_id`, `created_s`, `expires_s` (0: never).", schema=_array(_KEY)),
    "grants": Field("object", "Right by dataset.", schema=_map({"type": TEXT})),
    "right": Field(TEXT, "`read`, `write`, `admin` or `none`."),
    "servers": Field(WHOLE, "Number of servers."),
    "address": Field(TEXT, "Address of a server."),
    "version": Field(TEXT, "Version of dieselfs."),
    "started_s": Field(NUMBER, "Time of start, in seconds since 1970."),
    "store": Field(TEXT, "Object store."),
    "metadata": Field(TEXT, "Metadata store."),
    "metrics": Field("object", "[Counters](counters.md) by name.", schema=_map({"type": NUMBER})),
    # -- checks
    "state": Field(TEXT, "`ok`, `warning` or `failure`."),
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
    "activity": Field(
        "object",
        "What it does: `seconds` watched, rates for a second, times in seconds.",
        schema={"type": "object"},
    ),
    "limit": Field(TEXT, "What limits the training, in one word."),
    "text": Field(TEXT, "What was seen or found."),
    "advice": Field(TEXT, "The one thing to change."),
    # -- settings and completion
    "name": Field(TEXT, "Name of a setting, or of a step."),
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

_UPLOADED = (
    "dataset generation stored stored_bytes skipped skipped_bytes deleted failed seconds "
    "*first_source? *first_path?"
)
_WOULD_UPLOAD = "dry_run entries bytes skipped deleted failed"
_UPLOAD = {
    "entry": ["*source *path size"],
    "deletion": ["*path"],
    "summary": [_UPLOADED, _WOULD_UPLOAD],
}
_GOT = "written written_bytes skipped failed is_damaged seconds"
_TO_GET = "*path *destination size"
_COPIED = (
    "dry_run dataset target_dataset *old *new sources copied copied_bytes skipped deleted generation seconds"
)
_ENTRY = "*path kind size mode mtime_ns *target?"
_DATASET = "dataset files bytes chunks generation updated_ns"
_GENERATION = "dataset generation updated_ns files bytes"
_TAG = "dataset tag generation updated_ns files bytes digest"
_COMPARED = {
    "difference": ["change *path kind"],
    "summary": ["entries added removed changed attributes failed"],
}
_REBUILT = "dataset chunks entries files generation damaged_chunks"
_PLAN = "dataset *folder? seed epoch positions group_chunks? skipped? files? cursor?"
_SETTING = "name value origin where"

VERB_LINES: Mapping[str, Mapping[str, list[str]]] = {
    "put": _UPLOAD,
    "sync": {
        "entry": [*_UPLOAD["entry"], _TO_GET],
        "deletion": [*_UPLOAD["deletion"], "*destination"],
        "summary": [*_UPLOAD["summary"], f"{_GOT} deleted"],
    },
    "get": {"entry": [_TO_GET], "summary": [_GOT, "dry_run entries bytes skipped"]},
    "import": _UPLOAD,
    "attach": {
        "entry": ["*source *path size"],
        "source": ["*source size mark chunks files bytes trouble"],
        "summary": [
            "dataset generation attached attached_bytes copied copied_bytes failed seconds",
            "dry_run entries bytes failed",
            "dataset sources unreadable",
        ],
    },
    "detach": {"summary": ["dataset entries sources generation"]},
    "export": {
        "summary": [
            "image entries image_bytes seconds? dry_run?",
            "target format entries bytes failed? seconds? dry_run?",
            _GOT,
        ]
    },
    "ls": {"entry": [_ENTRY], "dataset": [_DATASET], "summary": ["entries", "datasets lost"]},
    "stat": {"entry": [f"dataset {_ENTRY}"], "summary": ["entries"]},
    "find": {"entry": [f"dataset {_ENTRY}"], "summary": ["entries bytes"]},
    "tree": {"entry": [_ENTRY], "summary": ["folders files?"]},
    "cat": {"summary": []},
    "head": {"summary": []},
    "cp": {
        "entry": ["*path *source", *_UPLOAD["entry"], _TO_GET],
        "summary": [_COPIED, *_UPLOAD["summary"], _GOT, "dry_run entries bytes skipped"],
    },
    "mv": {"entry": ["*path *source"], "summary": [_COPIED]},
    "rm": {"entry": ["dataset *path"], "summary": ["entries dry_run?"]},
    "du": {"usage": ["dataset *path bytes files"], "summary": ["bytes files"]},
    "info": {
        "dataset": [f"{_DATASET} dataset_id server"],
        "file": ["dataset *path size extents"],
        "summary": ["locations"],
    },
    "rb": {"summary": ["dataset files bytes tags readers dry_run?"]},
    "mount": {
        "summary": ["dataset folder mountpoint generation process? job? node? nodes? members? dry_run?"]
    },
    "umount": {"mount": ["mountpoint"], "summary": ["dry_run mounts failed"]},
    "run": {"summary": []},
    "mounts": {
        "mount": [
            "mountpoint dataset process options view view_reason is_stale daemon restarts upgrades resends "
            "trouble last_error"
        ],
        "cache": ["process dataset generation job"],
        "summary": ["mounts caches"],
    },
    "upgrade": {"mount": ["mountpoint daemon?"], "summary": ["dry_run mounts"]},
    "warm": {
        "summary": [
            "mountpoint job pinned_bytes wanted_bytes damaged_chunks share dataset_bytes nodes unknown",
            "mountpoint dry_run",
        ]
    },
    "cache": {"summary": ["dataset generation dry_run process? job? node? nodes? members?"]},
    "purge": {
        "summary": [
            "dry_run dataset removed_chunks copied_chunks rewritten_chunks waiting_chunks freed_bytes grace_s held_by"
        ]
    },
    "tag": {
        "tag": [_TAG],
        "summary": [_TAG, "dataset tag dry_run", "tags"],
    },
    "snapshot": {
        "snapshot": [f"{_GENERATION} digest file file_bytes"],
        "generation": [f"{_GENERATION} tags"],
        "difference": ["change *path kind"],
        "summary": [
            "dataset generation file dry_run?",
            "snapshots file_bytes dry_run?",
            "generations",
            "entries added removed changed attributes failed",
        ],
    },
    "fsck": {
        "problem": ["kind what is_mended"],
        "summary": ["dataset deep repair dry_run chunks entries bytes problems unmended"],
    },
    "check": _COMPARED,
    "diff": _COMPARED,
    "verify": {
        "digest": ["digest dataset generation quick", "digest folder"],
        "summary": ["dataset generation quick", "folder"],
    },
    "rebuild": {
        "dataset": [_REBUILT, "dry_run dataset since_s"],
        "summary": [_REBUILT, "dry_run dataset since_s", "dry_run datasets"],
    },
    "shuffle": {
        "entry": ["position *path"],
        "summary": [
            f"{_PLAN} rank? world? batch? start? chunks?",
            f"{_PLAN} groups entropy_ratio mean_distance folder_repeats folder_repeats_expected group_bytes_max "
            "group_bytes_mean",
            f"{_PLAN} rank world chunks entropy_ratio mean_distance folder_repeats folder_repeats_expected "
            "buffered_bytes_max",
        ],
    },
    "which": {"entry": ["position *path"], "summary": [_PLAN]},
    "user": {
        "key": ["user key"],
        "user": ["user keys grants"],
        "summary": [
            "user out key_id? dry_run?",
            "user old_key_id key_file key_id? dry_run?",
            "user key_id dry_run?",
            "users",
            "user dataset right dry_run?",
        ],
    },
    "server": {"server": ["address version started_s store metadata metrics"], "summary": ["servers"]},
    "doctor": {"check": ["name state text fix"], "summary": ["ok warnings failures"]},
    "top": {"activity": ["process about activity"], "summary": ["processes?"]},
    "why": {"diagnosis": ["limit text advice activity"], "summary": ["limit"]},
    "metrics": {"process": ["about families"], "summary": ["processes", "address"]},
    "config": {
        "setting": [_SETTING],
        "step": ["name found seconds"],
        "summary": ["settings file", "dry_run name value file", "steps"],
    },
    "completion": {"summary": ["shell script"]},
}
"""By verb, the kinds of its lines, each with the fields of its forms. `?`: not always there. `*`: a name; if it is not
UTF-8, a second field with `_bytes` at its end has it in base64. Each verb also has `failure` lines, and a summary with
`error`.
"""


def fields_of(form: str) -> Iterator[tuple[str, Field, bool]]:
    """Name, field, and whether it is always there."""
    for word in form.split():
        name, is_needed = word.strip("*?"), not word.endswith("?")
        yield name, FIELDS[name], is_needed
        if word.startswith("*"):
            yield f"{name}_bytes", Field(TEXT, f"The bytes of `{name}` in base64."), False


def _line(kind: str, form: str) -> dict[str, Any]:
    head = "exit_code " if kind == "summary" else ""
    fields = list(fields_of(head + form))
    return {
        "type": "object",
        "properties": {
            "type": {"const": kind},
            **{name: {"$ref": f"#/$defs/field-{name}"} for name, _, _ in fields},
        },
        "required": ["type", *(name for name, _, is_needed in fields if is_needed)],
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """The JSON Schema: `$defs` has one for a line of each verb."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The lines of dlcmd --json, by verb",
        "$defs": {
            **{f"field-{name}": one.json_schema() for name, one in sorted(_all_fields().items())},
            **{
                verb: {
                    "anyOf": [
                        *(_line(kind, form) for kind, forms in lines.items() for form in forms),
                        _line("failure", "*path reason"),
                        _line("summary", "error"),
                    ]
                }
                for verb, lines in VERB_LINES.items()
            },
        },
    }


def _all_fields() -> dict[str, Field]:
    forms = (form for lines in VERB_LINES.values() for kind in lines.values() for form in kind)
    named = {
        name: one for form in (*forms, "*path reason", "exit_code error") for name, one, _ in fields_of(form)
    }
    return named | {"type": FIELDS["type"]}


def text() -> str:
    """The content of json-schema.json, with a line for each definition."""
    whole = schema()
    definitions = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one)}" for name, one in whole.pop("$defs").items()
    )
    return f'{json.dumps(whole)[:-1]}, "$defs": {{\n{definitions}\n}}}}\n'


def page() -> str:
    """The tables of the page: lines by verb, and fields."""
    rows = ["| verb | type | fields |", "| --- | --- | --- |"]
    for verb, lines in VERB_LINES.items():
        for kind, forms in lines.items():
            for form in forms:
                names = ", ".join(f"`{word.lstrip('*')}`" for word in form.split())
                rows.append(f"| `{verb}` | `{kind}` | {names} |")
    rows += ["", "| field | type | meaning |", "| --- | --- | --- |"]
    for name, one in FIELDS.items():
        kind = f"{one.type}, or null" if one.is_nullable else one.type
        rows.append(f"| `{name}` | {kind} | {one.meaning} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(text() if "--schema" in sys.argv else page(), end="")
