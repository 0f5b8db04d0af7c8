"""A signed statement of what a run has read: a generation of a dataset, and positions of its orders
(docs/reference/proof.md). No I/O.

A user states it, and signs it; the servers' signature in it is that of the snapshot. A reader of the proof
with the snapshot computes when a file was read.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np

from dieselfs.errors import AccessDenied, Damaged, InvalidInput
from dieselfs.limits import CURSOR_CHARACTERS_MAX, SKIP_RANGES_MAX
from dieselfs.net.auth import check_signature, pin_of
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import NAME_BY_KIND
from dieselfs.shuffle.run_log import RUN_MARK
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.snapshot.format import SnapshotHeader
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import UNSIGNED, check_snapshot_signature, message_of

READS_MAX = 4096
"""Orders in one proof: usually one for each epoch."""
PROOF_BYTES_MAX = (READS_MAX + 16) * (CURSOR_CHARACTERS_MAX + 8)

_CONTEXT = b"dieselfs proof\0"
"""Before the text that is signed, so that a signature of something else is never one of a proof."""
_HEX32 = "[0-9a-f]{64}"
_TEXT = re.compile(
    rf"dieselfs-proof 1\ndataset ([!-~]{{1,255}}) ([0-9a-f]{{32}}) (\d{{1,19}}) (\d{{1,19}}) ({_HEX32})\n"
    rf"servers ({_HEX32}) ([0-9a-f]{{128}})\nfolder (/[!-~]*)\nbatch (\d{{1,10}})\n((?:read [!-~]+\n)+)"
    rf"stated (\d{{1,12}})\nsigner ([!-~]{{1,64}}) ({_HEX32})\nsignature ([0-9a-f]{{128}})\n"
)
_CURSORS = re.compile(
    rb"(?:%b)[12]\.[0-9a-f]{24}\.s\d{1,20}\.e\d{1,20}(?:\.g\d{1,20})?\.p\d{1,20}(?:\.x\d{1,20}-\d{1,20}){0,%d}"
    rb"\.[0-9a-f]{8}" % ("|".join(NAME_BY_KIND).encode(), SKIP_RANGES_MAX)
)


def cursors_in(content: bytes) -> Iterator[Cursor]:
    """The cursors in any content: a log, a state of a sampler, a checkpoint, `.dieselfs/cursor` of a mount.

    Raises InvalidInput for the state of an opportunistic order: its cursor has the position, and not the order.
    """
    if RUN_MARK.encode() in content:
        raise InvalidInput(
            "it has an opportunistic order, which no cursor repeats: a proof does not cover it"
        )
    for match in _CURSORS.finditer(content):
        try:
            yield Cursor.parse(match[0].decode())
        except InvalidInput:  # it only looks like one
            continue


def furthest(cursors: Iterable[Cursor]) -> list[Cursor]:
    """The cursor with the largest position of each order, by seed and epoch; without those that have read nothing."""
    found: dict[object, Cursor] = {}
    for cursor in cursors:
        key = cursor.snapshot, cursor.spec
        if cursor.position and (key not in found or found[key].position < cursor.position):
            found[key] = cursor
    return sorted(found.values(), key=lambda cursor: (cursor.spec.seed, cursor.spec.epoch, str(cursor)))


@dataclass(frozen=True, slots=True)
class Reading:
    """One time that a file was read. `step` is None if the proof has no batch size."""

    seed: int
    epoch: int
    position: int
    step: int | None


@dataclass(frozen=True, slots=True)
class Proof:
    """`reads`: of each order all positions before that of its cursor were read, by all readers together, as files
    below `folder`. `batch`: files of a step, 0 if it is unknown. `stated_s`: when, in seconds since 1970, by the clock
    of the signer.
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
    reads: tuple[Cursor, ...]
    stated_s: int
    signer: str
    public_key: bytes
    signature: bytes = b""

    @classmethod
    def of(
        cls,
        header: SnapshotHeader,
        folder: bytes,
        batch: int,
        reads: Iterable[Cursor],
        stated_s: int,
        signer: str,
        public_key: bytes,
    ) -> Self:
        """Not signed yet. Raises InvalidInput if nothing was read, or in too many orders, or from a snapshot without
        the signature of the servers.
        """
        if header.signer == UNSIGNED:
            raise InvalidInput(
                f"{header.dataset} is encrypted: the servers have signed its snapshot with encrypted names only, and "
                "not what a run has read"
            )
        cursors = tuple(reads)
        if not 0 < len(cursors) <= READS_MAX:
            raise InvalidInput(f"a proof has 1 to {READS_MAX} orders, not {len(cursors)}")
        state = header.dataset, header.dataset_id, header.generation, header.updated_ns, header.digest
        server = header.signer, header.signature
        return cls(*state, *server, folder, batch, cursors, stated_s, signer, public_key)

    def _text(self) -> str:
        reads = "".join(f"read {cursor}\n" for cursor in self.reads)
        return (
            "dieselfs-proof 1\n"
            f"dataset {self.dataset} {self.dataset_id.hex()} {self.generation} {self.updated_ns} {self.digest.hex()}\n"
            f"servers {self.server.hex()} {self.server_signature.hex()}\n"
            f"folder /{quote(self.folder, safe='/')}\nbatch {self.batch}\n{reads}"
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
        dataset, dataset_id, generation, updated_ns, digest, server, server_signature, folder, batch = (
            match.groups()[:9]
        )
        try:
            reads = tuple(Cursor.parse(line.removeprefix("read ")) for line in match[10].splitlines())
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
            int(match[11]),
            match[12],
            bytes.fromhex(match[13]),
            bytes.fromhex(match[14]),
        )
        if proof.encode() != content or len(reads) > READS_MAX:
            raise Damaged(f"{source}: not written as a proof is")
        try:
            check_signature(
                pin_of(proof.public_key), proof.public_key, proof.message(), proof.signature, source
            )
            message = message_of(proof.digest)
            check_signature(pin_of(proof.server), proof.server, message, proof.server_signature, source)
        except AccessDenied:
            raise Damaged(f"{source}: a signature is wrong: the proof was changed") from None
        return proof

    def plans(self, snapshot: Snapshot) -> list[Plan]:
        """The order of each read. Raises InvalidInput for a snapshot of another state, Damaged for a damaged one."""
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
        layout = Layout.of(snapshot, self.folder)
        return [Plan.at(snapshot, cursor, layout) for cursor in self.reads]

    def readings(self, plans: Iterable[Plan], path: bytes) -> list[Reading]:
        """When a file was read, in the order of the reads; none: never in what the proof states."""
        found = []
        for plan, cursor in zip(plans, self.reads, strict=True):
            node = plan.snapshot.find(path)
            for position in np.flatnonzero(plan.nodes(0, cursor.position) == node).tolist():
                step = position // self.batch if self.batch else None
                found.append(Reading(cursor.spec.seed, cursor.spec.epoch, position, step))
        return found


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
