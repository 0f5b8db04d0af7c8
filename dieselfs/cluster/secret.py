"""The secret of a job: a process that knows it belongs to the job. This module opens files.

The servers never get it. They distinguish jobs of one name by fingerprints, from which the secret cannot be computed,
and store members under seals that only its owners can make: no server can add a member. Peers prove the secret to each
other as clients prove their keys to a server (`dieselfs/rpc/auth.py`).
"""

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from dieselfs.cluster.member import Member
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import KIB, SEAL_BYTES
from dieselfs.rpc.auth import Key, read_key_file
from dieselfs.rpc.members import JobId
from dieselfs.settings import BY_NAME

JOB_SECRET_FILE_BYTES_MAX = 4 * KIB

SECRET_BYTES = 32
FINGERPRINT_BYTES = 16
FILE_BYTES_MIN = 32

_PEER_USER = "job"


@dataclass(frozen=True, slots=True)
class JobSecret:
    """Its `repr` does not show the secret."""

    secret: bytes = field(repr=False)

    def fingerprint(self) -> bytes:
        """Identifies the job to the servers."""
        return self._derive(b"dieselfs job fingerprint 1")[:FINGERPRINT_BYTES]

    def seal(self, member: Member, job_id: JobId) -> bytes:
        """The proof that the member belongs to the job, and the member. Raises InvalidInput."""
        encoded = member.encode()
        return self._proof(encoded, job_id) + encoded

    def open(self, sealed: bytes, job_id: JobId) -> Member:
        """The sealed member. Raises AccessDenied if it is not of the job, InvalidInput if it is malformed."""
        encoded = sealed[SEAL_BYTES:]
        if not hmac.compare_digest(sealed[:SEAL_BYTES], self._proof(encoded, job_id)):
            raise AccessDenied("the member has another job secret, or reads another snapshot")
        return Member.of(encoded)

    def peer_key(self) -> Key:
        """The key of the handshake between members."""
        secret = self._derive(b"dieselfs job peers 1")
        return Key(_PEER_USER, self.fingerprint().hex(), secret)

    def _proof(self, encoded: bytes, job_id: JobId) -> bytes:
        parts = (job_id.dataset.encode(), job_id.job.encode(), job_id.digest, encoded)
        message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._derive(b"dieselfs job member 1"), message, "sha256")

    def _derive(self, label: bytes) -> bytes:
        return hmac.digest(self.secret, label, "sha256")


def secret_of_key(key: Key, dataset: str, job: str) -> JobSecret:
    """The default secret of a job: the same for all processes with this key."""
    return JobSecret(hmac.digest(key.secret, f"dieselfs job secret 1 {dataset} {job}".encode(), "sha256"))


def find_secret(secret_file: str | None, key_file: str | None, dataset: str, job: str) -> JobSecret:
    """The secret of a job: from its file, or else from the user's key. Raises InvalidInput, AccessDenied."""
    if secret_file is not None:
        return read_secret_file(secret_file)
    if key_file is not None:
        return secret_of_key(read_key_file(key_file), dataset, job)
    raise InvalidInput(
        "the nodes of a job need a shared secret: give each the same file (made with: openssl rand -hex 32) "
        f"as {BY_NAME['job_secret'].ways()} (in Python: job_secret='FILE'), or use a key to the server"
    )


def read_secret_file(path: str | os.PathLike[str]) -> JobSecret:
    """The secret in a file: any content of at least 32 bytes.

    Raises AccessDenied if there is no such file, or other users may read it.
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
