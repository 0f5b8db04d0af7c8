"""The private key of the servers is kept apart from the store: in a file, or in a token."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, Unavailable
from dieselfs.net.auth import check_signature
from dieselfs.net.tls import certifying_pin
from dieselfs_server.access.identity import (
    BEFORE_RECORD,
    IDENTITY_RECORD,
    NEXT_RECORD,
    Identity,
    LiveIdentity,
    announce_identity,
    move_identity,
    next_identity,
    store_identity,
)
from dieselfs_server.access.key_places import KeyFile, open_keys
from dieselfs_server.access.token import Token, parse_uri
from dieselfs_server.datasets.tags import replace_identity
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.opening import open_store
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.server import RunningServer, running_server
from tests.support.softhsm import PIN, SoftToken, soft_token
from tests.support.strace import KILL, KILLED, count_calls, needs_strace, run_with_fault

STEPS = "rename|renameat|renameat2", "link|linkat", "unlink|unlinkat", "fsync|fdatasync"
"""The system calls that change what is found after a crash."""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftToken]:
    with soft_token(tmp_path_factory.mktemp("token")) as made:
        yield made


def run(server: RunningServer, *words: str) -> subprocess.CompletedProcess[str]:
    folder = server.folder
    stores = "--store", f"posix://{folder}/chunks", "--metadata", f"sqlite://{folder}/metadata.db"
    command = [sys.executable, "-m", "dieselfs_server.main", *stores, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def seeds_of(folder: Path) -> list[bytes]:
    """The private keys in the records of a store in a folder."""
    found = [Identity.decode(path.read_bytes()) for path in (folder / "chunks/records").glob("identity*")]
    return [each.seed for each in found if each.seed]


def files_with(folder: Path, seed: bytes) -> list[Path]:
    """The files below a folder that have a private key, as bytes or in hexadecimal."""
    wanted = seed, seed.hex().encode()
    contents = ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    return [path for path, content in contents if any(each in content for each in wanted)]


# -- files -----------------------------------------------------------------------------------------------


def test_the_key_of_a_new_store_is_made_in_the_file(tmp_path: Path) -> None:
    store, keys = MemoryStore(), KeyFile(str(tmp_path / "identity.key"))
    made = store_identity(store, keys)
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600
    assert made.seed and store.get_record(IDENTITY_RECORD) == made.encode_public()
    assert store_identity(store, keys) == made
    other = MemoryStore()
    assert store_identity(other, keys) == made, "a file that was there first is used"


def test_what_is_wrong_with_the_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    store, keys = MemoryStore(), KeyFile(str(path))
    store_identity(store, keys)
    content = path.read_bytes()
    path.chmod(0o640)
    with pytest.raises(
        AccessDenied, match=r"server identity .*identity.key can be read by others: chmod 600"
    ):
        store_identity(store, keys)
    path.chmod(0o600)
    shutil.chown(path, 12345)
    with pytest.raises(AccessDenied, match="belongs to another user"):
        store_identity(store, keys)
    shutil.chown(path, 0)
    path.write_text("something\n")
    with pytest.raises(InvalidInput, match="not a file that dieselfs-server has written"):
        store_identity(store, keys)
    path.write_bytes(Identity.generate().encode())
    with pytest.raises(InvalidInput, match="lacks the private key of the identity"):
        store_identity(store, keys)
    path.write_bytes(content)
    assert store_identity(store, keys)
    with pytest.raises(InvalidInput, match="kept apart from the object store: set server_identity"):
        store_identity(store)
    with pytest.raises(InvalidInput, match="--move-identity"):
        store_identity(old_store(), keys)


def old_store() -> MemoryStore:
    store = MemoryStore()
    store_identity(store)
    return store


@needs_strace
@pytest.mark.processes
def test_a_move_that_is_killed_at_any_step_leaves_the_same_identity(tmp_path: Path) -> None:
    store = f"posix://{tmp_path}/chunks"
    with closing(open_store(store, is_new=True)) as opened:
        before = store_identity(opened)
        next_before = announce_identity(opened)
    shutil.copytree(tmp_path / "chunks", tmp_path / "original")
    path = tmp_path / "keys" / "identity.key"
    words = [
        *("--store", store, "--metadata", f"sqlite://{tmp_path}/metadata.db"),
        *("--server-identity", str(path), "--move-identity"),
    ]

    def renewed() -> None:
        for name, original in (("chunks", "original"), ("keys", None)):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(tmp_path / original, tmp_path / name) if original else (tmp_path / name).mkdir()

    steps = []
    for call in STEPS:
        renewed()
        found = count_calls("dieselfs_server.main", words, call, tmp_path / "calls")
        steps += [(call, number) for number in range(1, found + 1)]
    assert len(steps) >= 8, "two keys get into the file, and two records; each is synced and renamed"
    for call, number in steps:
        renewed()
        run_with_fault("dieselfs_server.main", words, call, KILL, number, [KILLED])
        with closing(open_store(store, is_new=False)) as opened:
            keys, starting = KeyFile(str(path)), []
            for place in (None, keys):  # one of them starts, the other one says what to do
                with suppress(InvalidInput):
                    starting.append(store_identity(opened, place))
            assert [each.public_key for each in starting] == [before.public_key], (call, number)
            move_identity(opened, keys)  # the same command again
            assert store_identity(opened, keys) == before and next_identity(opened, keys) == next_before
        assert all(not files_with(tmp_path / "chunks", each.seed) for each in (before, next_before))


def test_a_move_is_repeated_after_an_interruption(tmp_path: Path) -> None:
    store, keys = old_store(), KeyFile(str(tmp_path / "identity.key"))
    present, following = store_identity(store), announce_identity(store)
    keys.add(present)  # then it was interrupted
    assert move_identity(store, keys) == 2
    assert store_identity(store, keys) == present and next_identity(store, keys) == following
    assert move_identity(store, keys) == 0
    contents = [store.get_record(name) or b"" for name in store.list_records("identity")]
    assert len(contents) == 2
    assert not any(each.seed.hex().encode() in b"".join(contents) for each in (present, following))


def test_who_can_only_write_to_the_store_cannot_name_an_identity(tmp_path: Path) -> None:
    store, keys = MemoryStore(), KeyFile(str(tmp_path / "identity.key"))
    present = store_identity(store, keys)
    live = LiveIdentity(store, keys)
    for record in (NEXT_RECORD, BEFORE_RECORD):
        for forged in (IDENTITY.encode(), IDENTITY.encode_public(), IDENTITY.encode_public(OTHER_IDENTITY)):
            store.put_record(record, forged)
            assert not live.accepts(IDENTITY.public_key)
            assert live.next is None
        store.delete_record(record)
    store.put_record(IDENTITY_RECORD, IDENTITY.encode_public())
    live.refresh()
    assert live.current == present and "lacks the private key" in live.trouble
    store.put_record(NEXT_RECORD, IDENTITY.encode_public())
    store.put_record(IDENTITY_RECORD, present.encode_public())
    with pytest.raises(Damaged, match="it is not used"):
        replace_identity(store, keys, pause=lambda _: None)


def test_a_server_without_the_next_key_stays_and_has_a_reason(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "identity.key"
    keys, others = KeyFile(str(path)), KeyFile(str(tmp_path / "other.key"))
    old = store_identity(store, keys)
    shutil.copy(path, tmp_path / "other.key")
    elsewhere = LiveIdentity(store, others)
    new = announce_identity(store, keys)
    replace_identity(store, keys, pause=lambda _: elsewhere.refresh())
    assert elsewhere.current == old and "lacks the private key" in elsewhere.trouble
    shutil.copy(path, tmp_path / "other.key")
    elsewhere.refresh()
    assert elsewhere.current == new and not elsewhere.trouble
    assert keys.find(old.public_key) is None, "the old key is gone from the file"


def test_a_server_moves_its_key_to_a_file(tmp_path: Path) -> None:
    place = tmp_path / "apart" / "identity.key"
    place.parent.mkdir()
    with running_server(tmp_path / "server") as server:
        (seed,) = seeds_of(server.folder)
        assert files_with(server.folder, seed), "the test looks for the right bytes"
        key = server.user("ann", all_datasets="admin")
        done = run(server, "--server-identity", str(place), "--move-identity")
        assert done.returncode == 0 and "moved 1 private keys" in done.stdout, done.stderr
        with closing(server.client(key)) as client:  # it runs, and has its key
            client.create_dataset("data")
            client.put_tag("data", "v1")
    assert not files_with(server.folder, seed), "store, metadata, state and logs"
    assert files_with(place.parent, seed) == [place]
    backup = run(server, "--server-identity", str(place), "--backup", str(tmp_path / "backup"))
    assert backup.returncode == 0 and not files_with(tmp_path / "backup", seed)
    refused = run(server, "--listen", f"unix:{tmp_path}/s")
    assert refused.returncode == 1 and "set server_identity to its place" in refused.stderr
    with running_server(server.folder, ["--server-identity", str(place)]) as server:
        with closing(server.client(key)) as client:
            assert [tag.name for tag in client.tags("data")] == ["v1"]
            checks = {check.name: check for check in client.check_server(is_whole=True).checks}
        assert checks["identity"].state == "ok"
    assert not files_with(server.folder, seed)


# -- tokens ----------------------------------------------------------------------------------------------


def test_a_server_moves_its_key_to_a_token(tmp_path: Path, token: SoftToken) -> None:
    uri = token.uri("moved")
    with running_server(tmp_path / "server") as server:
        (seed,) = seeds_of(server.folder)
        key = server.user("ann", all_datasets="admin")
    done = run(server, "--server-identity", uri, "--move-identity")
    assert done.returncode == 0 and "to token dieselfs" in done.stdout, done.stderr
    assert not files_with(server.folder, seed)
    with running_server(server.folder, ["--server-identity", uri]) as server:
        data = Dataset(server.settings(key), "data", must_exist=False)  # over TLS, by the pin in the key file
        data.put("a", b"1")
        data.flush()
        data.client.put_tag("data", "v1", 0)
        assert data.get("a") == b"1"
        data._end()
        announced = run(server, "--server-identity", uri, "--new-identity", "announce")
        assert announced.returncode == 0, announced.stderr
        with closing(server.client(key)) as client:
            assert len(client.add_key("ann").pins) == 2
        assert not seeds_of(server.folder)
    assert not files_with(server.folder, seed)


def test_keys_in_a_token_sign_and_are_replaced(token: SoftToken) -> None:
    keys, store = Token(token.uri("replaced")), MemoryStore()
    old = store_identity(store, keys)
    assert not old.seed
    check_signature(old.pin, old.public_key, b"content", old.sign(b"content"), "test")
    new = announce_identity(store, keys)
    assert replace_identity(store, keys, pause=lambda _: None)[0].public_key == new.public_key
    assert keys.find(old.public_key) is None
    found = store_identity(store, keys)
    check_signature(new.pin, new.public_key, b"content", found.sign(b"content"), "test")
    keys.remove(new.public_key)
    keys._session = None  # as after the token was away
    with pytest.raises(Unavailable, match="no longer has the key"):
        found.sign(b"content")


def test_what_is_wrong_with_a_token_is_one_line(tmp_path: Path, token: SoftToken) -> None:
    with pytest.raises(Unavailable, match="no such token"):
        Token(token.uri("x", token="missing"))
    with pytest.raises(InvalidInput, match=r"PKCS#11 library .*nothing\.so"):
        Token(token.uri("x").replace("libsofthsm2.so", "nothing.so"))
    open_to_all = tmp_path / "pin"
    open_to_all.write_text(PIN)
    open_to_all.chmod(0o644)
    with pytest.raises(AccessDenied, match=r"PIN of the token .* can be read by others"):
        Token(SoftToken(token.folder, open_to_all).uri("x"))


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("pkcs11:token=t?module-path=/m&pin-value=1", "write it to a private file"),
        ("pkcs11:token=t?pin-source=/p", "without module-path"),
        ("pkcs11:object=o?module-path=/m&pin-source=/p", "without token"),
        ("pkcs11:token=t;slot=3?module-path=/m&pin-source=/p", "unknown: slot"),
    ],
)
def test_a_place_that_is_no_uri_of_a_token(uri: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        open_keys(uri)
    assert parse_uri("pkcs11:token=a%20b?module-path=/m&pin-source=/p")["token"] == "a b"


def test_only_the_identity_certifies_the_key_of_a_server(tmp_path: Path, token: SoftToken) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding

    from dieselfs_server.access.certificates import CERTIFIED_S, RENEWED_S, certificate_of

    now_s, key = 1_800_000_000.0, Ed25519PrivateKey.generate()
    made = certificate_of(key, IDENTITY, now_s).public_bytes(Encoding.DER)
    assert certifying_pin(made, now_s) == IDENTITY.pin
    assert certifying_pin(made, now_s + CERTIFIED_S) and certifying_pin(made, now_s - RENEWED_S)
    assert not certifying_pin(made, now_s + CERTIFIED_S + 1) and not certifying_pin(
        made, now_s - RENEWED_S - 1
    )
    for place in range(len(made)):
        flipped = made[:place] + bytes([made[place] ^ 1]) + made[place + 1 :]
        assert certifying_pin(flipped, now_s) != IDENTITY.pin
    for other in (b"", made[:-1], made[:40]):
        assert certifying_pin(other, now_s) == b""
