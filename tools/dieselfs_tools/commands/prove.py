"""The verb `prove`: a signed statement of what a run has read, and what it answers."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import AccessDenied, InvalidInput, NotFound, os_errors_as
from dieselfs.limits import CURSOR_CHARACTERS_MAX
from dieselfs.names import SCHEME, Location, printable, user_path
from dieselfs.units import format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields, replace_file
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:  # orders import numpy, for which the help must not wait
    from dieselfs.shuffle.cursor import Cursor
    from dieselfs.shuffle.proof import Proof, Read
    from dieselfs.shuffle.run_log import RunLog

_BLOCK_BYTES = 1 << 24
_LOG_BYTES_MAX = 1 << 26
"""Of an opportunistic order: millions of chunks."""


@options.verb(
    "prove",
    "dlcmd prove imagenet@v1/train run/checkpoint.pt train.log --since 0 --batch 256 -o run.proof",
    "dlcmd prove imagenet@v1 /mnt/imagenet/.dieselfs/cursor       # what a mount has read",
    "dlcmd prove --check run.proof --signer 3f61...",
    "dlcmd prove --check run.proof --snapshot imagenet.snapshot --file train/n01440764/n01440764_10026.JPEG",
)
@click.argument("dataset", type=options.FOLDER, required=False, metavar="[DATASET[@TAG][/FOLDER]")
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path), metavar="FILE...]")
@click.option(
    "--since",
    type=click.IntRange(0),
    metavar="EPOCH",
    help="State that the epochs from this one to the newest were read to their ends.",
)
@click.option(
    "--batch", type=click.IntRange(1, 10**9), help="Files of one step, so that answers have steps too."
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the proof here.  [stdout]"
)
@click.option("--check", "proof", type=click.Path(path_type=Path), metavar="FILE", help="Check this proof.")
@click.option("--signer", metavar="KEY", help="Fail if another key than this one has signed.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The saved snapshot of the generation; answers need it. Of an encrypted dataset, its names: 'dlcmd snapshot "
    "save --names'.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A state of the sampler or its log, of an opportunistic order in the proof; --snapshot needs it.",
)
@click.option("--file", "files", multiple=True, metavar="PATH", help="Print when this file was read.")
def prove(
    session: Session,
    dataset: Location | None,
    sources: tuple[Path, ...],
    since: int | None,
    batch: int | None,
    out: Path | None,
    proof: Path | None,
    signer: str | None,
    snapshot: Path | None,
    logs: tuple[Path, ...],
    files: tuple[str, ...],
) -> int:
    """State with your signature what a run has read: the generation, the orders, and how far; or check such a proof.

    FILEs are states of samplers, checkpoints, logs, and .dieselfs/cursor of mounts: each cursor in them counts. Of an
    opportunistic order, the proof has the digest of the log in the state; keep that for the check. The check needs no
    server. It answers when a file was read, and whether it never was. The proof of an encrypted dataset has no names;
    answers need the file of 'dlcmd snapshot save --names'.
    """
    if proof is not None:
        if dataset is not None or sources or since is not None or batch is not None or out is not None:
            raise InvalidInput(
                "--check takes the proof alone: leave out the dataset, --since, --batch and -o"
            )
        if (files or logs) and snapshot is None:
            raise InvalidInput("--file and --log need --snapshot: 'dlcmd snapshot save' writes the file")
        return _check(session, proof, signer, snapshot, logs, files)
    if signer is not None or snapshot is not None or logs or files:
        raise InvalidInput("--signer, --snapshot, --log and --file need --check: the proof")
    if dataset is None or not sources:
        raise InvalidInput("the dataset and a file with cursors are missing: dlcmd prove DATASET FILE...")
    return _prove(session, dataset, sources, since, batch or 0, out)


def _prove(
    session: Session,
    location: Location,
    sources: Sequence[Path],
    since: int | None,
    batch: int,
    out: Path | None,
) -> int:
    from dieselfs.rpc.encrypted import keyring
    from dieselfs.shuffle.proof import Proof, Read, furthest, whole_epochs
    from dieselfs.shuffle.spec import PlanSpec
    from dieselfs.snapshot.derived import signed_of
    from dieselfs.snapshot.names_file import NamesFile

    data = session.dataset(location.state, job="")
    plan = data.plan_of(PlanSpec(folder=location.path))
    found = {read for source in sources for read in _reads(source)}
    if not found:
        raise InvalidInput("there is no cursor in the files: a state of a sampler, or a log, has one")
    digest = plan.cursor(0).snapshot
    mine = [read for read in found if read.cursor.snapshot == digest]
    if not mine:
        raise InvalidInput(
            f"the {len(found)} cursors in the files are of another folder, generation or choice of files than "
            f"{location}: give those of the run"
        )
    logged = {(read.cursor.spec.seed, read.cursor.spec.epoch) for read in mine if read.log}
    if any(not read.log and (read.cursor.spec.seed, read.cursor.spec.epoch) in logged for read in mine):
        raise InvalidInput(
            "a cursor of an epoch in opportunistic order is in a file without its log: give the log's file alone"
        )
    if since is not None:
        if any(read.log for read in mine):
            raise InvalidInput(
                "--since is not for opportunistic orders: give a state of the end of each epoch"
            )
        cursors = [read.cursor for read in mine]
        newest = max(cursors, key=lambda cursor: (cursor.spec.epoch, cursor.position))
        mine += map(Read, whole_epochs(since, newest, plan, cursors))
    reads = furthest(mine)
    if not reads:
        raise InvalidInput("nothing was read: the cursors in the files are at the start of their epochs")
    keys = keyring(session.settings())
    signer, key = keys.recipient().name, keys.signing_key()
    public_key = key.public_key().public_bytes_raw()
    is_encrypted = plan.snapshot.header.is_encrypted
    header = (signed_of(plan.snapshot) if is_encrypted else plan.snapshot).header
    made = Proof.of(header, location.path, batch, reads, int(time.time()), signer, public_key)
    if is_encrypted:
        names = NamesFile.of(plan.snapshot, data.client.known_cipher(data.name))
        made = made.hidden(names.key, names.snapshot.digest)
    made = made.signed(key.sign)
    text = made.encode().decode()
    if out is not None:
        replace_file(out, text)
        session.output.note(f"{out}: signed by {signer} {public_key.hex()}")
    elif not session.output.is_json:
        print(text, end="")
    others = sum(read.cursor.snapshot != digest for read in found)
    if others:
        session.output.aside(f"{others} cursors in the files are of other samples, and left out")
    return session.output.summary("", {**_fields(made), "proof": text, "others": others})


def _found_in(source: Path) -> "tuple[set[Cursor], list[RunLog]]":
    """The cursors, and the logs of opportunistic orders, in a file of any size. Raises NotFound if it cannot be read,
    InvalidInput for a log that is not whole.
    """
    from dieselfs.shuffle.proof import cursors_in
    from dieselfs.shuffle.run_log import RUN_MARK, RunLog

    rest, end, starts = b"", 0, set[int]()
    found: set[Cursor] = set()
    try:
        with open(source, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                content, end = rest + block, end + len(block)
                found.update(cursors_in(content))
                marks = re.finditer(RUN_MARK.encode(), content)
                starts.update(end - len(content) + mark.start() for mark in marks)
                rest = content[-CURSOR_CHARACTERS_MAX:]
            logs, ordered = [], sorted(starts)
            for start, following in zip(ordered, [*ordered[1:], end], strict=False):
                file.seek(start)
                logs.append(RunLog.first_in(file.read(min(_LOG_BYTES_MAX, following - start))))
            return found, logs
    except OSError as error:
        raise NotFound(f"{source}: {error.strerror}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None


def _reads(source: Path) -> "set[Read]":
    """Raises as `_found_in`, and InvalidInput for two logs of one epoch."""
    from dieselfs.shuffle.proof import reads_of

    cursors, logs = _found_in(source)
    try:
        return reads_of(cursors, logs)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None


def _fields(proof: "Proof") -> dict[str, object]:
    return {
        "dataset": proof.dataset,
        "generation": proof.generation,
        **(name_fields(proof.folder, "folder") if proof.folder else {}),
        **({"names_digest": proof.names.hex()} if proof.names else {}),
        "orders": len(proof.reads),
        "stated_s": proof.stated_s,
        "signer": proof.signer,
        "public_key": proof.public_key.hex(),
        "server_key": proof.server.hex(),
    }


def _check(
    session: Session,
    path: Path,
    signer: str | None,
    saved: Path | None,
    sources: Sequence[Path],
    files: Sequence[str],
) -> int:
    from dieselfs.shuffle.proof import PROOF_BYTES_MAX, Proof
    from dieselfs.snapshot.names_file import NamesFile
    from dieselfs.snapshot.reader import Snapshot

    with os_errors_as(NotFound, path), open(path, "rb") as file:
        proof = Proof.decode(file.read(PROOF_BYTES_MAX + 1), str(path))
    if signer is not None and proof.public_key.hex() != signer.lower():
        raise AccessDenied(
            f"{path}: signed by {proof.signer} with the key {proof.public_key.hex()}, not with yours"
        )
    output = session.output
    for cursor, log in proof.reads:
        spec = cursor.spec
        fields = {"seed": spec.seed, "epoch": spec.epoch, "positions": cursor.position, "cursor": str(cursor)}
        text = f"seed {spec.seed}, epoch {spec.epoch}: positions 0 to {cursor.position - 1} of {cursor}"
        text += f", in the opportunistic order of the log {log.hex()}" if log else ""
        fields |= {"log": log.hex()} if log else {}
        output.detail("read", text, {**fields, "skipped": len(spec.skips)})
    logs = {run.digest: run for source in sources for run in _found_in(source)[1]}
    plans = proof.plans(NamesFile.open(saved) or Snapshot.open(saved), logs) if saved is not None else []
    if files and not plans:
        raise InvalidInput(
            f"{proof.dataset} is encrypted: --file needs the names, which 'dlcmd snapshot save --names' writes for who "
            "has its key; give them as --snapshot"
        )
    for name in files:
        name_bytes = user_path(name)
        readings = proof.readings(plans, name_bytes)
        for one in readings:
            step = "" if one.step is None else f", step {one.step}"
            text = (
                f"{printable(name_bytes)}: seed {one.seed}, epoch {one.epoch}, position {one.position}{step}"
            )
            fields = {"seed": one.seed, "epoch": one.epoch, "position": one.position}
            fields |= {} if one.step is None else {"step": one.step}
            output.record("reading", text, {**name_fields(name_bytes), **fields})
        if not readings:
            is_there = plans[0].snapshot.find(name_bytes) >= 0
            why = "never, in what the proof states" if is_there else "not in this generation"
            output.record(
                "never", f"{printable(name_bytes)}: {why}", {**name_fields(name_bytes), "is_there": is_there}
            )
    folder = f"/{printable(proof.folder)}" if proof.folder else " (encrypted)" if proof.names else ""
    whose = "" if signer else " (compare the key, or give --signer)"
    text = (
        f"{SCHEME}{proof.dataset}{folder}, generation {proof.generation}: stated {format_time(proof.stated_s)} by "
        f"{proof.signer} {proof.public_key.hex()}{whose}; snapshot signed by the servers {proof.server.hex()}"
    )
    return output.summary(text, {**_fields(proof), "is_compared": signer is not None})
