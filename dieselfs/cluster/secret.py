"""The secret of a job: a process that knows it belongs to the job. This module opens files.

The servers never get it. They distinguish jobs of one name by fingerprints, from which the secret cannot be computed,
and store members under seals that only its owners can make: no server can add a member. Peers prove the secret to each
other by certificates (`credential.py`), and inside TLS as clients prove their keys to a server.
"""

import hashlib
import hmac
import os
import time
from dataclasses import dataclass, field

from dieselfs.cluster.member import Member
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import KIB, SEAL_BYTES
from dieselfs.net.auth import Key, read_key_file
from dieselfs.net.private_file import read_private_file
from dieselfs.rpc.members import JobId
from dieselfs.settings.table import BY_NAME

JOB_SECRET_FILE_BYTES_MAX = 4 * KIB

SEAL_STEP_S = 300
"""A record expires after one to two steps, if it is not renewed."""
CLOCKS_S = 300.0
"""Clocks of nodes may differ by this."""

FINGERPRINT_BYTES = 16
FILE_BYTES_MIN = 32

_PROOF_BYTES = 32
_EXPIRY_BYTES = 8
assert SEAL_BYTES == _PROOF_BYTES + _EXPIRY_BYTES
_PEER_USER = "job"


@dataclass(frozen=True, slots=True)
class JobSecret:
    """Its `repr` does not show the secret."""

    secret: bytes = field(repr=False)

    def fingerprint(self) -> bytes:
        """Identifies the job to the servers."""
        return self._derive(b"dieselfs job fingerprint 1")[:FINGERPRINT_BYTES]

    def seal(self, member: Member, job_id: JobId, now_s: float | None = None) -> bytes:
        """The proof that the member belongs to the job, an expiry, and the member. `now_s` since 1970; None: now.

        The same bytes for SEAL_STEP_S, and for all members they change at the same time: so the list of a job changes
        rarely. Raises InvalidInput.
        """
        now_s = time.time() if now_s is None else now_s
        expires_s = (int(now_s) // SEAL_STEP_S + 2) * SEAL_STEP_S
        dated = expires_s.to_bytes(_EXPIRY_BYTES, "little") + member.encode()
        return self._proof(dated, job_id) + dated

    def open(self, sealed: bytes, job_id: JobId, now_s: float | None = None) -> Member:
        """The sealed member. Raises AccessDenied if it is not of the job or has expired, InvalidInput if it is
        malformed.
        """
        dated = sealed[_PROOF_BYTES:]
        if not hmac.compare_digest(sealed[:_PROOF_BYTES], self._proof(dated, job_id)):
            raise AccessDenied("the member has another job secret, or reads another snapshot")
        check_age(sealed, time.time() if now_s is None else now_s)
        return Member.of(sealed[SEAL_BYTES:])

    def peer_key(self) -> Key:
        """The key of the handshake between members."""
        secret = self._derive(b"dieselfs job peers 1")
        return Key(_PEER_USER, self.fingerprint().hex(), secret)

    def authority_key(self) -> bytes:
        """The private key of the job's authority (`credential.py`)."""
        return self._derive(b"dieselfs job authority 1")

    def _proof(self, encoded: bytes, job_id: JobId) -> bytes:
        parts = (job_id.dataset.encode(), job_id.job.encode(), job_id.digest, encoded)
        message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._derive(b"dieselfs job member 2"), message, "sha256")

    def _derive(self, label: bytes) -> bytes:
        return hmac.digest(self.secret, label, "sha256")


def check_age(sealed: bytes, now_s: float) -> None:
    """Raise AccessDenied if the record of a member has expired, or is of the future; clocks may differ by CLOCKS_S."""
    expires_s = int.from_bytes(sealed[_PROOF_BYTES:SEAL_BYTES], "little")
    if not now_s - CLOCKS_S <= expires_s <= now_s + 2 * SEAL_STEP_S + CLOCKS_S:
        raise AccessDenied(
            f"the record of the member has expired or is of the future, by {abs(expires_s - now_s):.0f} s: "
            "is its clock right?"
        )


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
    source = os.fspath(path)
    content = read_private_file(path, JOB_SECRET_FILE_BYTES_MAX + 1, "job secret").strip()
    if not FILE_BYTES_MIN <= len(content) <= JOB_SECRET_FILE_BYTES_MAX:
        raise AccessDenied(
            f"job secret {source} has {len(content)} bytes, {FILE_BYTES_MIN} to {JOB_SECRET_FILE_BYTES_MAX} are "
            "needed: make one with 'openssl rand -hex 32'"
        )
    return JobSecret(hashlib.sha256(content).digest())
