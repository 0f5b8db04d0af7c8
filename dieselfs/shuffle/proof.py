"""A signed statement of what a run has read: a generation of a dataset, and positions of its orders
(docs/reference/proof.md). No I/O.

A user states it, and signs it; the servers' signature in it is that of the snapshot. A reader of the proof
with the snapshot computes when a file was read; of an opportunistic order, with the log of the run, too.

Of an encrypted dataset, digests of plain names and of logs are stated as HMACs, since anybody could compare a
digest with that of guessed names. A reader computes with the names, which `NamesFile` has with the key of the HMACs.
"""

import hmac
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import CURSOR_CHARACTERS_MAX, SKIP_RANGES_MAX
from dieselfs.net.auth import check_signed_by
from dieselfs.shuffle.cursor import DIGEST_CHARACTERS, Cursor
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import NAME_BY_KIND
from dieselfs.shuffle.run_log import RunLog, ServedPlan
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.format import SnapshotHeader
from dieselfs.snapshot.names_file import NamesFile
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature, message_of

READS_MAX = 4096
"""Orders in one proof: usually one for each epoch."""
PROOF_BYTES_MAX = (READS_MAX + 16) * (CURSOR_CHARACTERS_MAX + 80)

_CONTEXT = b"dieselfs proof\0"
"""Before the text that is signed, so that a signature of something else is never one of a proof."""
_HEX32 = "[0-9a-f]{64}"
_TEXT = re.compile(
    rf"dieselfs-proof [123]\ndataset ([!-~]{{1,255}}) ([0-9a-f]{{32}}) (\d{{1,19}}) (\d{{1,19}}) ({_HEX32})\n"
    rf"servers ({_HEX32}) ([0-9a-f]{{128}})\n(?:folder (/[!-~]*)|names ({_HEX32}))\n"
    rf"batch (\d{{1,10}})\n((?:read [!-~]+(?: {_HEX32})?\n)+)"
    rf"stated (\d{{1,12}})\nsigner ([!-~]{{1,64}}) ({_HEX32})\nsignature ([0-9a-f]{{128}})\n"
)
_CURSORS = re.compile(
    rb"(?:%b)[12]\.[0-9a-f]{24}\.s\d{1,20}\.e\d{1,20}(?:\.g\d{1,20})?\.p\d{1,20}(?:\.x\d{1,20}-\d{1,20}){0,%d}"
    rb"\.[0-9a-f]{8}" % ("|".join(NAME_BY_KIND).encode(), SKIP_RANGES_MAX)
)


def cursors_in(content: bytes) -> Iterator[Cursor]:
    """The cursors in any content: a log, a state of a sampler, a checkpoint, `.dieselfs/cursor` of a mount."""
    for match in _CURSORS.finditer(content):
        try:
            yield Cursor.parse(match[0].decode())
        except InvalidInput:  # it only looks like one
            continue


class Read(NamedTuple):
    """All positions before that of the cursor were read. `log`: of an opportunistic order, the digest of the log that
    repeats it; empty for the order of a plan.
    """

    cursor: Cursor
    log: bytes = b""

    def __str__(self) -> str:
        return f"{self.cursor} {self.log.hex()}" if self.log else str(self.cursor)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidInput."""
        cursor, _, log = text.partition(" ")
        return cls(Cursor.parse(cursor), bytes.fromhex(log))


def reads_of(cursors: Iterable[Cursor], logs: Iterable[RunLog]) -> set[Read]:
    """What the cursors of a file state, with the logs in it. A cursor in the state of an opportunistic order has its
    position alone. Raises InvalidInput if there are two logs of one epoch.
    """
    by_epoch: dict[tuple[str, int, int], bytes] = {}
    for run in logs:
        if by_epoch.setdefault(run.epoch, run.digest) != run.digest:
            raise InvalidInput(
                f"it has two opportunistic orders of epoch {run.epoch[2]}: give one file for each"
            )
    return {
        Read(cursor, by_epoch.get((cursor.snapshot, cursor.spec.seed, cursor.spec.epoch), b""))
        for cursor in cursors
    }


def furthest(reads: Iterable[Read]) -> list[Read]:
    """The read with the largest position of each order, by seed and epoch; without those of nothing."""
    found: dict[object, Read] = {}
    for read in reads:
        cursor = read.cursor
        key = cursor.snapshot, cursor.spec, read.log
        if cursor.position and (key not in found or found[key].cursor.position < cursor.position):
            found[key] = read
    return sorted(found.values(), key=lambda read: (read.cursor.spec.seed, read.cursor.spec.epoch, str(read)))


@dataclass(frozen=True, slots=True)
class Reading:
    """One time that a file was read. `step` is None if the proof has no batch size."""

    seed: int
    epoch: int
    position: int
    step: int | None


@dataclass(frozen=True, slots=True)
class Proof:
    """`reads`: what was read of each order, by all readers together, as files below `folder`. `batch`: files of a step,
    0 if it is unknown. `stated_s`: when, in seconds since 1970, by the clock of the signer. `names`: of an encrypted
    dataset, the HMAC of the plain snapshot and the folder; then `folder` is empty. `digest` is that of the servers.
    """

    dataset: str
    dataset_id: bytes
    generation: int
    updated_ns: int
    digest: bytes
    server: bytes
    server_signature: bytes
    folder: bytes
    batch: int
    reads: tuple[Read, ...]
    stated_s: int
    signer: str
    public_key: bytes
    signature: bytes = b""
    names: bytes = b""

    @classmethod
    def of(
        cls,
        header: SnapshotHeader,
        folder: bytes,
        batch: int,
        reads: Iterable[Read],
        stated_s: int,
        signer: str,
        public_key: bytes,
    ) -> Self:
        """Not signed yet. `header`: of the snapshot that the servers have signed. Raises InvalidInput if nothing was
        read, or in too many orders.
        """
        orders = tuple(reads)
        if not 0 < len(orders) <= READS_MAX:
            raise InvalidInput(f"a proof has 1 to {READS_MAX} orders, not {len(orders)}")
        state = header.dataset, header.dataset_id, header.generation, header.updated_ns, header.digest
        server = header.signer, header.signature
        return cls(*state, *server, folder, batch, orders, stated_s, signer, public_key)

    def hidden(self, key: bytes, plain: bytes) -> Self:
        """As it is stated of an encrypted dataset. `key`: `DatasetCipher.proof_key`; `plain`: the digest of the
        snapshot with plain names.
        """
        names = _hidden_names(key, plain, self.folder)
        shown = names.hex()[:DIGEST_CHARACTERS]
        reads = tuple(
            Read(replace(cursor, snapshot=shown), log and _hidden_log(key, log)) for cursor, log in self.reads
        )
        return replace(self, folder=b"", names=names, reads=reads)

    def _text(self) -> str:
        reads = "".join(f"read {read}\n" for read in self.reads)
        version = 3 if self.names else 2 if any(read.log for read in self.reads) else 1
        files = f"names {self.names.hex()}" if self.names else f"folder /{quote(self.folder, safe='/')}"
        return (
            f"dieselfs-proof {version}\n"
            f"dataset {self.dataset} {self.dataset_id.hex()} {self.generation} {self.updated_ns} {self.digest.hex()}\n"
            f"servers {self.server.hex()} {self.server_signature.hex()}\n"
            f"{files}\nbatch {self.batch}\n{reads}"
            f"stated {self.stated_s}\nsigner {self.signer} {self.public_key.hex()}\n"
        )

    def message(self) -> bytes:
        """What the user signs."""
        return _CONTEXT + self._text().encode("ascii")

    def signed(self, sign: Callable[[bytes], bytes]) -> Self:
        return replace(self, signature=sign(self.message()))

    def encode(self) -> bytes:
        return f"{self._text()}signature {self.signature.hex()}\n".encode("ascii")

    @classmethod
    def decode(cls, content: bytes, source: str) -> Self:
        """A proof whose signatures are right. Raises Damaged, which begins with `source`, for anything else."""
        match = _TEXT.fullmatch(content[: PROOF_BYTES_MAX + 1].decode("ascii", "replace"))
        if match is None:
            raise Damaged(f"{source}: not a proof of this version, or not whole")
        (
            dataset,
            dataset_id,
            generation,
            updated_ns,
            digest,
            server,
            server_signature,
            folder,
            names,
            batch,
        ) = match.groups("")[:10]
        try:
            reads = tuple(Read.parse(line.removeprefix("read ")) for line in match[11].splitlines())
        except InvalidInput as error:
            raise Damaged(f"{source}: {error}") from None
        proof = cls(
            dataset,
            bytes.fromhex(dataset_id),
            int(generation),
            int(updated_ns),
            bytes.fromhex(digest),
            bytes.fromhex(server),
            bytes.fromhex(server_signature),
            unquote_to_bytes(folder.removeprefix("/")),
            int(batch),
            reads,
            int(match[12]),
            match[13],
            bytes.fromhex(match[14]),
            bytes.fromhex(match[15]),
            bytes.fromhex(names),
        )
        is_shown = not names or all(names.startswith(read.cursor.snapshot) for read in reads)
        if proof.encode() != content or len(reads) > READS_MAX or not is_shown:
            raise Damaged(f"{source}: not written as a proof is")
        try:
            check_signed_by(proof.public_key, proof.message(), proof.signature, source)
            check_signed_by(proof.server, message_of(proof.digest), proof.server_signature, source)
        except Damaged:
            raise Damaged(f"{source}: a signature is wrong: the proof was changed") from None
        return proof

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Raises InvalidInput for a snapshot of another state, Damaged for a damaged one or one without signature."""
        header = snapshot.header
        if (header.dataset_id, header.digest) != (self.dataset_id, self.digest):
            raise InvalidInput(
                f"{snapshot.source} is not generation {self.generation} of {self.dataset}: save that with dlcmd "
                f"snapshot save --generation {self.generation}"
            )
        snapshot.verify()
        check_snapshot_signature(header, snapshot.source)
        if (header.dataset, header.generation, header.updated_ns) != (
            self.dataset,
            self.generation,
            self.updated_ns,
        ):
            raise Damaged(f"{snapshot.source}: the snapshot has another name or generation than the proof")

    def plans(self, saved: Snapshot | NamesFile, logs: Mapping[bytes, RunLog]) -> list[Plan | ServedPlan]:
        """The order of each read; none of an encrypted dataset without its names. `logs`: by their digests. Raises as
        `check_snapshot`, InvalidInput for other names, and if a log is missing or of another order.
        """
        if isinstance(saved, NamesFile):
            snapshot, folder = saved.snapshot, self._named_folder(saved)
            logs = {_hidden_log(saved.key, digest): run for digest, run in logs.items()}
        else:
            snapshot, folder = saved, self.folder
            self.check_snapshot(snapshot)
            if self.names:
                return []
        layout = Layout.of(snapshot, folder)
        named = Plan(snapshot, PlanSpec(folder=folder), layout).cursor(0).snapshot
        plans: list[Plan | ServedPlan] = []
        for cursor, log in self.reads:
            plan = Plan.at(snapshot, replace(cursor, snapshot=named) if self.names else cursor, layout)
            if log and log not in logs:
                raise InvalidInput(
                    f"epoch {cursor.spec.epoch} has an opportunistic order: give --log FILE, a state of the sampler of "
                    f"that epoch, whose log has the {'HMAC' if self.names else 'SHA-256'} {log.hex()}"
                )
            plans.append(ServedPlan.of(plan, logs[log]) if log else plan)
        return plans

    def _named_folder(self, file: NamesFile) -> bytes:
        """The folder whose files were ordered. Raises InvalidInput for names of another state, Damaged."""
        snapshot = file.snapshot
        snapshot.verify()
        for folder in snapshot.path_many(np.flatnonzero(snapshot.types() == stat.S_IFDIR)):
            if hmac.compare_digest(_hidden_names(file.key, snapshot.digest, folder), self.names):
                return folder
        raise InvalidInput(
            f"{snapshot.source} has not the names that the proof is about: save them with dlcmd snapshot save --names "
            f"--generation {self.generation}"
        )

    def readings(self, plans: Iterable[Plan | ServedPlan], path: bytes) -> list[Reading]:
        """When a file was read, in the order of the reads; none: never in what the proof states."""
        found = []
        for plan, (cursor, _) in zip(plans, self.reads, strict=True):
            node = plan.snapshot.find(path)
            for position in np.flatnonzero(plan.nodes(0, cursor.position) == node).tolist():
                step = position // self.batch if self.batch else None
                found.append(Reading(cursor.spec.seed, cursor.spec.epoch, position, step))
        return found


def _hidden_names(key: bytes, plain: bytes, folder: bytes) -> bytes:
    return hmac.digest(key, b"names " + plain + folder, "sha256")


def _hidden_log(key: bytes, log: bytes) -> bytes:
    return hmac.digest(key, b"log " + log, "sha256")


def whole_epochs(first: int, newest: Cursor, plan: Plan, known: Iterable[Cursor]) -> Iterator[Cursor]:
    """The orders of the epochs from `first` up to that of `newest`, as read to their ends, with the skips of cursors
    that are known of them. `plan`: any of the samples. Raises InvalidInput for too many.
    """
    if newest.spec.epoch - first > READS_MAX:
        raise InvalidInput(f"{newest.spec.epoch - first} epochs in one proof; the limit is {READS_MAX}")
    skips = {(one.spec.seed, one.spec.group_chunks, one.spec.epoch): one.spec.skips for one in known}
    for epoch in range(first, newest.spec.epoch):
        skipped = skips.get((newest.spec.seed, newest.spec.group_chunks, epoch), NO_SKIPS)
        spec = replace(newest.spec, epoch=epoch, skips=skipped, folder=plan.spec.folder)
        whole = Plan(plan.snapshot, spec, plan.layout)
        yield whole.cursor(len(whole))
