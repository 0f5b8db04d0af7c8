"""The calls for datasets as a whole: their tags, mirrors, keys, pins and jobs. This module opens sockets."""

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from dieselfs.errors import AlreadyExists
from dieselfs.limits import JOB_ANSWER_TIMEOUT_S, JOB_INTERVAL_S_MIN, MIRROR_PART_BYTES
from dieselfs.records import DatasetRecord
from dieselfs.rpc.calls import Calls
from dieselfs.rpc.encrypted import cipher_of, keyring
from dieselfs.rpc.members import MEMBERSHIP_LIST_BYTES_MAX, JobId, MembershipList, decode_members
from dieselfs.rpc.records import MirrorRecord, PinRecord, TagRecord
from dieselfs.rpc.wire import Buffer
from dieselfs.settings.table import Settings

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher


class DatasetCalls(Calls):
    """A part of `ServerClient`."""

    def __init__(self, settings: Settings, start: int | None = None) -> None:
        """As of `ServerConnections`."""
        super().__init__(settings, start)
        self._ciphers: dict[str, DatasetCipher | None] = {}  # by dataset; changed in single steps
        self._sealed: set[str] = set()

    def create_dataset(self, name: str, dataset_id: bytes = b"") -> DatasetRecord:
        """`dataset_id`: for a mirror, that of its origin. Raises InvalidInput, AlreadyExists."""
        return self._record(DatasetRecord, "create_dataset", name=name, dataset_id=dataset_id)

    def ensure_dataset(self, name: str) -> DatasetRecord:
        """The dataset, which is created unless it exists. Raises InvalidInput, AccessDenied."""
        try:
            return self.create_dataset(name)
        except AlreadyExists:
            return self.dataset(name)

    def dataset(self, name: str) -> DatasetRecord:
        """Raises NotFound."""
        return self._record(DatasetRecord, "get_dataset", name=name)

    def datasets(self) -> list[DatasetRecord]:
        """The datasets that this user may read, ordered by name."""
        return self._records(DatasetRecord, "list_datasets")

    def lost_datasets(self) -> list[str]:
        """Names of the datasets that have chunks, but no metadata, and that this user may read; sorted."""
        return [str(name) for name in self._value("list_lost_datasets")]

    def drop_dataset(self, name: str, dataset_id: bytes = b"") -> None:
        """Remove a dataset with all of its content, for good. `dataset_id`: not another one, which has been made under
        the name since. Raises NotFound.
        """
        self._value("drop_dataset", name=name, dataset_id=dataset_id)

    def put_tag(self, dataset: str, tag: str, generation: int = 0) -> TagRecord:
        """Keep a generation, 0 for the newest, under a name. Raises AlreadyExists, NotFound, InvalidInput."""
        return self._record(TagRecord, "put_tag", dataset=dataset, tag=tag, generation=generation)

    def tags(self, dataset: str, with_kept: bool = False) -> list[TagRecord]:
        """By name; first, on request, the generations that the server keeps without a name. Raises NotFound."""
        return self._records(TagRecord, "list_tags", dataset=dataset, with_kept=with_kept)

    def delete_tag(self, dataset: str, tag: str) -> None:
        """Raises NotFound."""
        self._value("delete_tag", dataset=dataset, tag=tag)

    def keep_mirror(self, dataset: str, origin: str, generation: int) -> MirrorRecord:
        """Make a dataset without chunks a mirror of `origin`, and note the newest generation of that. Raises
        InvalidInput, NotFound.
        """
        named = {"dataset": dataset, "origin": origin, "generation": generation}
        return self._record(MirrorRecord, "keep_mirror", **named)

    def put_mirror(self, dataset: str, snapshot: Buffer) -> MirrorRecord:
        """Show a snapshot of the origin, all of whose chunks are stored. Raises InvalidInput, Damaged, NotFound."""
        view = memoryview(snapshot)
        parts = [view[at : at + MIRROR_PART_BYTES] for at in range(0, len(view), MIRROR_PART_BYTES)]
        for number, part in enumerate(parts[:-1]):
            self._put_part(dataset, part, number, len(parts))
        return self._put_part(dataset, parts[-1], len(parts) - 1, len(parts))

    def _put_part(self, dataset: str, content: memoryview, part: int, parts: int) -> MirrorRecord:
        sent = {"bulk": [content], "bulk_length": len(content), "part": part, "parts": parts}
        return self._record(MirrorRecord, "put_mirror", dataset=dataset, **sent)

    def promote_mirror(self, dataset: str) -> MirrorRecord:
        """Make a mirror a dataset of its own, with what it shows; returns what it was. Raises InvalidInput, NotFound,
        StorageFull.
        """
        return self._record(MirrorRecord, "promote_mirror", dataset=dataset)

    def mirrors(self) -> list[MirrorRecord]:
        """The mirrors that this user may read, ordered by name."""
        return sorted(self._records(MirrorRecord, "list_mirrors"))

    def keys(self, dataset: str) -> bytes:
        """The record of the keys of a dataset (`KeyRecord`), empty if it is not encrypted. Raises NotFound."""
        return bytes(self._value("get_keys", dataset=dataset))

    def cipher(self, dataset: DatasetRecord) -> "DatasetCipher | None":
        """What encrypts and decrypts the dataset, None if it is not encrypted; asks the server.

        Raises AccessDenied without a key for it, Damaged if it is not the one of before.
        """
        if dataset.name in self._sealed:
            return None
        found = self._ciphers[dataset.name] = cipher_of(self.settings, dataset, self.keys(dataset.name))
        return found

    def leave_sealed(self, dataset: str) -> None:
        """Read names and bytes of a dataset as its servers have them, also if it is encrypted. No key is needed."""
        self._sealed.add(dataset)
        self._ciphers.pop(dataset, None)

    def known_cipher(self, dataset: str) -> "DatasetCipher | None":
        """As `cipher`; asks the server once for each dataset."""
        if dataset not in self._ciphers:
            self._ciphers[dataset] = self.cipher(self.dataset(dataset)) if self.keys(dataset) else None
        return self._ciphers[dataset]

    def encrypt(self, dataset: DatasetRecord) -> None:
        """Give a dataset without files a new key, for this user, unless it has one.

        Raises InvalidInput, AccessDenied.
        """
        if not self.keys(dataset.name):
            record = keyring(self.settings).new_record(dataset.dataset_id)
            with suppress(AlreadyExists):  # another writer's is taken
                self.put_keys(dataset.name, record.encode(), b"")
        self.cipher(dataset)

    def put_keys(self, dataset: str, content: bytes, known: bytes) -> None:
        """Create the record (`known` is empty) of a dataset without files, or replace the `known` one.

        Raises NotFound, InvalidInput, AlreadyExists.
        """
        self._value("put_keys", dataset=dataset, content=content, known=known)

    def pin(self, dataset: str, holder: str, generation: int, updated_ns: int, lease_s: int) -> None:
        """Protect the chunks of a snapshot from purges for `lease_s` seconds; 0 ends the pin. Raises NotFound."""
        pinned = {"dataset": dataset, "generation": generation, "updated_ns": updated_ns}
        self._value("pin", **pinned, holder=holder, lease_s=lease_s)

    def pins(self, dataset: str) -> list[PinRecord]:
        """The pins that have not expired, ordered by holder. Raises NotFound."""
        return self._records(PinRecord, "list_pins", dataset=dataset)

    def join_job(
        self, job_id: JobId, fingerprint: bytes, member: bytes, known_version: int, progress: bytes = b""
    ) -> MembershipList:
        """Join a job (`known_version` 0) or renew the lease, and get the other members. `member` is sealed. `progress`:
        an encoded `NodeProgress`, or empty.

        Raises NotFound, InvalidInput, or AlreadyExists if the others read something else, or the node has a new master.
        """
        info, members = self._call(
            "join_job",
            timeout_s=JOB_ANSWER_TIMEOUT_S,
            bulk_bytes_max=MEMBERSHIP_LIST_BYTES_MAX,
            fingerprint=fingerprint,
            member=member,
            known_version=known_version,
            progress=progress,
            **asdict(job_id),
        )
        interval_s = max(info.interval_ms / 1000, JOB_INTERVAL_S_MIN)
        return MembershipList(info.version, interval_s, None if members is None else decode_members(members))

    def leave_job(self, job_id: JobId, fingerprint: bytes, member: bytes) -> None:
        """End the membership; no error if there is none. Raises NotFound."""
        leaving = {"job": job_id.job, "fingerprint": fingerprint, "member": member}
        self._value("leave_job", dataset=job_id.dataset, **leaving)
