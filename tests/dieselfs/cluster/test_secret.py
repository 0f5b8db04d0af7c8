"""The secret of a job: it proves who belongs to it, and nothing that leaves the process gives it away."""

from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.cluster.secret import (
    CLOCKS_S,
    FINGERPRINT_BYTES,
    SEAL_STEP_S,
    JobSecret,
    find_secret,
    read_secret_file,
    secret_of_key,
)
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.net import auth
from dieselfs.net.auth import Key
from dieselfs.rpc.members import JobId
from tests.dieselfs.cluster.test_member import MEMBER

SECRET, OTHER = JobSecret(b"s" * 32), JobSecret(b"t" * 32)
TERMS = JobId("data", "train", 7, b"d" * 32)


def test_a_sealed_member_is_opened_by_those_who_know_the_secret() -> None:
    sealed = SECRET.seal(MEMBER, TERMS)
    assert SECRET.open(sealed, TERMS) == MEMBER
    assert SECRET.open(sealed, replace(TERMS, generation=8)) == MEMBER  # a number for people


@pytest.mark.parametrize(
    ("secret", "terms"),
    [
        (OTHER, TERMS),
        (SECRET, replace(TERMS, dataset="dat")),
        (SECRET, replace(TERMS, job="atrain", dataset="dat")),
        (SECRET, replace(TERMS, digest=b"e" * 32)),
    ],
)
def test_not_by_others_and_not_on_other_terms(secret: JobSecret, terms: JobId) -> None:
    with pytest.raises(AccessDenied):
        secret.open(SECRET.seal(MEMBER, TERMS), terms)


def test_not_if_anything_was_altered() -> None:
    sealed = SECRET.seal(MEMBER, TERMS)
    for place in range(len(sealed)):
        altered = bytearray(sealed)
        altered[place] ^= 1
        with pytest.raises(AccessDenied):
            SECRET.open(bytes(altered), TERMS)
    for end in (0, 10, 32, len(sealed) - 1):
        with pytest.raises(AccessDenied):
            SECRET.open(sealed[:end], TERMS)


def test_a_record_expires_and_is_the_same_for_a_while() -> None:
    start_s = 1_000_000 * SEAL_STEP_S
    sealed = SECRET.seal(MEMBER, TERMS, start_s)
    assert sealed == SECRET.seal(MEMBER, TERMS, start_s + SEAL_STEP_S - 1)
    assert sealed != SECRET.seal(MEMBER, TERMS, start_s + SEAL_STEP_S)
    for now_s in (start_s - CLOCKS_S, start_s, start_s + 2 * SEAL_STEP_S + CLOCKS_S):
        assert SECRET.open(sealed, TERMS, now_s) == MEMBER
    for now_s in (start_s - CLOCKS_S - 1, start_s + 2 * SEAL_STEP_S + CLOCKS_S + 1):
        with pytest.raises(AccessDenied, match="expired or is of the future"):
            SECRET.open(sealed, TERMS, now_s)


def test_what_is_no_member_is_not_sealed() -> None:
    with pytest.raises(InvalidInput):
        SECRET.seal(replace(MEMBER, node="a/b"), TERMS)


def test_fingerprints_tell_jobs_apart_and_show_nothing() -> None:
    assert SECRET.fingerprint() != OTHER.fingerprint()
    assert len(SECRET.fingerprint()) == FINGERPRINT_BYTES
    assert "ss" not in repr(SECRET) and "secret" not in repr(SECRET)


def test_peers_prove_it_to_each_other() -> None:
    mine, theirs = SECRET.peer_key(), JobSecret(b"s" * 32).peer_key()
    said = auth.transcript(auth.PEER_ROLE, auth.PLAIN_CHANNEL, mine.user, mine.key_id, b"n" * 32, b"m" * 32)
    assert auth.is_client_proof(theirs.verifier(), said, auth.client_proof(mine, said))
    assert not auth.is_client_proof(OTHER.peer_key().verifier(), said, auth.client_proof(mine, said))
    assert mine.secret not in (SECRET.secret, SECRET.fingerprint())


def test_the_secret_of_a_job_that_was_given_none_comes_from_the_users_key() -> None:
    key = Key("ann", "1", b"k" * 32)
    assert secret_of_key(key, "data", "train") == secret_of_key(Key("ann", "1", b"k" * 32), "data", "train")
    others = [secret_of_key(key, "data", "test"), secret_of_key(key, "data2", "train")]
    others.append(secret_of_key(Key("ann", "1", b"l" * 32), "data", "train"))
    assert secret_of_key(key, "data", "train") not in others


def test_a_secret_comes_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef" * 2 + "\n")
    path.chmod(0o600)
    assert read_secret_file(path) == read_secret_file(str(path))
    path.chmod(0o640)
    with pytest.raises(AccessDenied, match="chmod 600"):
        read_secret_file(path)
    path.chmod(0o600)
    for content in ("too short", "x" * 5000):
        path.write_text(content)
        with pytest.raises(AccessDenied, match="openssl rand") as refused:
            read_secret_file(path)
        assert content not in str(refused.value)
    with pytest.raises(AccessDenied, match="No such file"):
        read_secret_file(tmp_path / "none")


def test_a_file_goes_before_the_key_and_something_there_must_be(tmp_path: Path) -> None:
    path, key_file = tmp_path / "secret", tmp_path / "key"
    key = Key.generate("ann")
    for file, content in ((path, "s" * 32), (key_file, key.text())):
        file.touch(0o600)
        file.write_text(content)
    assert find_secret(str(path), str(key_file), "data", "train") == read_secret_file(path)
    assert find_secret(None, str(key_file), "data", "train") == secret_of_key(key, "data", "train")
    with pytest.raises(InvalidInput, match="job_secret=FILE"):
        find_secret(None, None, "data", "train")
