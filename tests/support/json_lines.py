"""The lines that `dlcmd --json` prints: the table of verbs, its JSON Schema, and its page. No I/O.

`python -m tests.support.json_lines` prints the tables of docs/reference/json.md, and with `--schema` the file
docs/reference/json-schema.json.

The tables stay tables of words. A typed struct for each of the 129 forms, from which msgspec makes the schema, took 863
lines more, because most forms share their fields, and would repeat types and meanings. Lines are checked against the
schema wherever a test runs a verb with --json (tests/support/dlcmd.py).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.json_fields import FIELDS, TEXT, Field

_UPLOADED = (
    "dataset generation stored stored_bytes skipped skipped_bytes deleted failed seconds "
    "shared_bytes? compressed_bytes? *first_source? *first_path?"
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
    "dry_run dataset target_dataset remote target_remote *old *new sources copied copied_bytes skipped deleted "
    "generation seconds"
)
_ENTRY = "*path kind size mode mtime_ns *target?"
_DATASET = "dataset files bytes chunks generation updated_ns"
_GENERATION = "dataset generation updated_ns files bytes"
_TAG = "dataset tag generation updated_ns files bytes digest"
_COMPARED = {
    "difference": ["change *path kind"],
    "summary": ["entries added removed changed attributes failed"],
}
_PURGED = (
    "dry_run dataset removed_chunks copied_chunks rewritten_chunks waiting_chunks freed_bytes grace_s held_by"
)
_CHECKED = "dataset deep repair dry_run chunks entries bytes problems unmended"
_REBUILT = "dataset chunks entries files generation damaged_chunks"
_PLAN = "dataset *folder? seed epoch positions group_chunks? skipped? files? cursor?"
_PROOF = "dataset generation *folder? names_digest? orders stated_s signer public_key server_key"
_SETTING = "name value origin where"

VERB_LINES: Mapping[str, Mapping[str, list[str]]] = {
    "put": _UPLOAD,
    "sync": {
        "entry": [*_UPLOAD["entry"], _TO_GET],
        "deletion": [*_UPLOAD["deletion"], "*destination"],
        "summary": [
            *_UPLOAD["summary"],
            f"{_GOT} deleted",
            "dataset generation stored stored_bytes deleted failed",
        ],
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
        "digest": ["digest dataset *path"],
        "entry": ["*path *source", *_UPLOAD["entry"], _TO_GET],
        "summary": [_COPIED, *_UPLOAD["summary"], _GOT, "dry_run entries bytes skipped"],
    },
    "mirror": {
        "mirror": ["dataset follows generation generations_behind lag_s digest signer_pin"],
        "summary": ["mirrors behind dry_run"],
    },
    "mv": {"entry": ["*path *source"], "summary": [_COPIED]},
    "rm": {"entry": ["dataset *path"], "summary": ["entries dry_run?"]},
    "du": {"usage": ["dataset *path bytes files object_bytes?"], "summary": ["bytes files object_bytes?"]},
    "info": {
        "dataset": [f"{_DATASET} dataset_id server owner stored_bytes quota_bytes quota_files"],
        "file": ["dataset *path size extents"],
        "summary": ["locations"],
    },
    "rb": {"summary": ["dataset files bytes tags readers dry_run?"]},
    "mount": {
        "summary": [
            "dataset folder mountpoint generation process? memory_advice? job? node? nodes? members? dry_run?"
        ]
    },
    "umount": {"mount": ["mountpoint"], "summary": ["dry_run mounts failed"]},
    "run": {"summary": []},
    "mounts": {
        "mount": [
            "mountpoint dataset process options view view_reason is_stale daemon restarts upgrades resends "
            "trouble last_error following writes generation?"
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
    "cache": {
        "dataset": ["dataset dataset_id chunks bytes used_ns is_in_use"],
        "summary": [
            "dataset generation dry_run process? job? node? nodes? members?",
            "disk datasets bytes",
            "dry_run datasets bytes failed",
        ],
    },
    "purge": {"dataset": [_PURGED], "summary": [_PURGED, "dry_run datasets"]},
    "columns": {
        "column": ["name value_type files"],
        "summary": [
            "dataset columns files? generation?",
            "dry_run dataset columns files?",
            "columns files target?",
        ],
    },
    "repack": {
        "summary": [
            "dry_run dataset rewritten_chunks kept_chunks written_chunks files needed_bytes generation"
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
            "dataset generation file statement? dry_run?",
            "snapshots file_bytes dry_run?",
            "generations",
            "entries added removed changed attributes failed",
        ],
    },
    "fsck": {
        "problem": ["kind what is_mended"],
        "dataset": [_CHECKED],
        "summary": [_CHECKED, "datasets"],
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
    "bisect": {
        "run": ["run left_out files verdict returned metric seconds"],
        "cause": ["cause position *path is_decided"],
        "summary": [f"{_PLAN} runs_max runs? causes? unfinished? dry_run?"],
    },
    "prove": {
        "read": ["seed epoch positions cursor skipped log?"],
        "reading": ["*path seed epoch position step?"],
        "never": ["*path is_there"],
        "summary": [
            f"{_PROOF} proof others",
            f"{_PROOF} is_compared",
        ],
    },
    "user": {
        "key": ["user key"],
        "user": ["user keys grants is_barred provider_groups"],
        "summary": [
            "user out key_id? dry_run?",
            "grant_datasets right out key_id",
            "user old_key_id key_file key_id? dry_run?",
            "user key_id dry_run?",
            "users",
            "user dataset right dry_run?",
            "user is_barred dry_run",
        ],
    },
    "login": {"summary": ["user key_file until_s"]},
    "logout": {"summary": ["user"]},
    "group": {"group": ["group group_users grants"], "summary": ["group group_users dry_run", "groups"]},
    "key": {
        "recipient": ["name recipient", "name kind"],
        "summary": ["identity", "dataset key_id recipients", "dataset names"],
    },
    "erase": {
        "left": ["left"],
        "summary": ["dataset dry_run files recipients", "dataset dry_run entries tags"],
    },
    "quota": {
        "quota": ["account quota_bytes quota_files"],
        "summary": ["account quota_bytes quota_files dry_run", "quotas", "dataset owner dry_run"],
    },
    "limit": {
        "limit": ["user bytes_per_s requests_per_s job_bytes_per_s"],
        "summary": ["user bytes_per_s requests_per_s job_bytes_per_s dry_run", "limits"],
    },
    "usage": {
        "usage": [
            "kind name owner files bytes stored_bytes quota_bytes quota_files read_bytes written_bytes"
        ],
        "summary": ["bytes stored_bytes files read_bytes written_bytes"],
    },
    "server": {"server": ["address version started_s store metadata metrics"], "summary": ["servers"]},
    "doctor": {"check": ["name state text fix"], "summary": ["ok warnings failures"]},
    "top": {"activity": ["process about is_unmounted activity"], "summary": ["processes?"]},
    "dashboard": {"page": ["url fingerprint expires_s"], "summary": [""]},
    "why": {"diagnosis": ["limit text advice memory_advice activity"], "summary": ["limit"]},
    "report": {
        "epoch": ["subject plan began_s seconds totals quality ranks daemons points"],
        "summary": ["daemons"],
    },
    "chaos": {
        "rehearsal": ["fault reads failed wrong worst_s errors remedy is_as_promised seconds"],
        "summary": ["rehearsed broken refused"],
    },
    "plan": {
        "epoch": ["epoch_kind parts_s limit seconds waiting_s from_servers_bytes from_peers_bytes"],
        "summary": ["dataset files bytes kept_share resident_share group_bytes entropy_ratio chunks_from"],
    },
    "bench": {
        "timing": ["form files size reader first_files_s later_files_s"],
        "summary": ["speeds chunks_from measured_s view rounds seconds speeds_file"],
    },
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
