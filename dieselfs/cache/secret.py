"""The secret of a job: whoever knows it belongs to the job. This module opens files.

The servers never see it. They tell jobs of one name apart by fingerprints, from which the secret cannot be computed,
and they keep members under seals that only those who know the secret can make: so nobody else, and no server either,
makes anyone a member. Peers prove it to each other as clients prove their keys to a server (`dieselfs/rpc/auth.py`).
"""

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from dieselfs.cache.member import Member, Terms
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import JOB_SECRET_FILE_BYTES_MAX, MEMBER_BYTES_MAX
from dieselfs.rpc.auth import Key, read_key_file

SECRET_BYTES = 32
FINGERPRINT_BYTES = 16
SEAL_BYTES = 32
SEALED_MEMBER_BYTES_MAX = SEAL_BYTES + MEMBER_BYTES_MAX
FILE_BYTES_MIN = 32

_PEER_USER = "job"


@dataclass(frozen=True, slots=True)
class JobSecret:
    """Not shown when it is printed or logged."""

    secret: bytes = field(repr=False)

    def fingerprint(self) -> bytes:
        """What the servers know the job by."""
        return self._derive(b"dieselfs job fingerprint 1")[:FINGERPRINT_BYTES]

    def seal(self, member: Member, terms: Terms) -> bytes:
        """The member, and before it the proof that it belongs to the job on these terms. Raises InvalidInput."""
        card = member.card()
        return self._proof(card, terms) + card

    def open(self, sealed: bytes, terms: Terms) -> Member:
        """The member that was sealed. Raises AccessDenied if it is not of the job, InvalidInput if it is none."""
        card = sealed[SEAL_BYTES:]
        if not hmac.compare_digest(sealed[:SEAL_BYTES], self._proof(card, terms)):
            raise AccessDenied("this member does not know the secret of the job, or reads something else")
        return Member.of(card)

    def peer_key(self) -> Key:
        """The key with which members prove to each other that they belong to the job."""
        secret = self._derive(b"dieselfs job peers 1")
        return Key(_PEER_USER, self.fingerprint().hex(), secret)

    def _proof(self, card: bytes, terms: Terms) -> bytes:
        parts = (terms.dataset.encode(), terms.job.encode(), terms.digest, card)
        said = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._derive(b"dieselfs job member 1"), said, "sha256")

    def _derive(self, label: bytes) -> bytes:
        return hmac.digest(self.secret, label, "sha256")


def secret_of_key(key: Key, dataset: str, job: str) -> JobSecret:
    """The secret of a job that was given none: all who have this key come to the same, and nobody else does."""
    return JobSecret(hmac.digest(key.secret, f"dieselfs job secret 1 {dataset} {job}".encode(), "sha256"))


def find_secret(secret_file: str | None, key_file: str | None, dataset: str, job: str) -> JobSecret:
    """The secret of a job: in its file if there is one, else from the user's key. Raises InvalidInput, AccessDenied."""
    if secret_file is not None:
        return read_secret_file(secret_file)
    if key_file is not None:
        return secret_of_key(read_key_file(key_file), dataset, job)
    raise InvalidInput(
        "the nodes of a job prove a secret to each other: give each the same file with job_secret=FILE "
        "(made with: openssl rand -hex 32), or a key to the server"
    )


def read_secret_file(path: str | os.PathLike[str]) -> JobSecret:
    """The secret in a file, whatever is in it: at least 32 bytes that nobody can guess.

    Raises AccessDenied if there is none, or if others than its owner may read the file.
    """
    source = Path(path).expanduser()
    try:
        with source.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise AccessDenied(f"job secret {source} can be read by others: chmod 600 {source}")
            content = file.read(JOB_SECRET_FILE_BYTES_MAX + 1).strip()
    except OSError as error:
        raise AccessDenied(f"job secret {source}: {error.strerror}") from None
    if not FILE_BYTES_MIN <= len(content) <= JOB_SECRET_FILE_BYTES_MAX:
        raise AccessDenied(
            f"job secret {source} has {len(content)} bytes, {FILE_BYTES_MIN} to {JOB_SECRET_FILE_BYTES_MAX} are "
            "needed: make one with 'openssl rand -hex 32'"
        )
    return JobSecret(hashlib.sha256(content).digest())
