"""The checks of a server, each with the broken set-up that it is for."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs.etcd.client import EtcdAccess
from dieselfs.limits import CHUNK_TARGET_BYTES, GIB, KIB
from dieselfs.net.address import EtcdAddress, TcpAddress
from dieselfs.net.auth import Verifier
from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
from dieselfs.settings.table import OFF, ON
from dieselfs_server import condition
from dieselfs_server.access.accounts import Accounts, Right, StoredKey, User
from dieselfs_server.admission.room import Disk, Room
from dieselfs_server.condition import disk_reads
from dieselfs_server.maintenance import history
from dieselfs_server.metadata.sqlite.connections import MEMORY
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.settings import RegistrySettings
from dieselfs_server.store.memory import MemoryStore
from lab.ports import free_port
from tests.support.block_device import devices_of
from tests.support.etcd import running_etcd


class ReadOnlyStore(MemoryStore):
    def delete_record(self, name: str) -> None:
        raise Unavailable("AccessDenied")


class LazyStore(MemoryStore):
    def delete_record(self, name: str) -> None:
        """As a cache does that still shows what is gone."""


class AlteringStore(MemoryStore):
    def get_record(self, name: str) -> bytes | None:
        return b"old"


def test_a_store_that_works_is_left_as_it_was() -> None:
    store = MemoryStore()
    times_s = iter((1.0, 1.0043))
    found = condition.object_store(store, lambda: next(times_s))
    assert (found.state, found.text) == (OK, "wrote, read and removed a record in 4.3 ms")
    assert store.list_records("") == []


@pytest.mark.parametrize(("free", "state"), [(50, OK), (4, WARNING), (1, FAILURE)])
def test_a_disk_that_fills_up(free: int, state: str) -> None:
    room = Room(["/store", "/state"], lambda _: Disk(100 * GIB, free * GIB // 8))
    found = condition.disk_room(room)
    assert (found.state, "at /s" in found.text) == (state, True)
    assert condition.disk_room(Room()).state == OK


def test_a_backup_that_is_no_longer_made() -> None:
    store, day_s = MemoryStore(), 86_400
    assert condition.maintenance(store, 0).text == (
        "no backup yet, no fsck of a dataset yet, no purge of a dataset yet"
    )
    history.note(store, history.BACKUP, 10 * day_s)
    history.note(store, history.FSCK, 11 * day_s)
    history.note(store, history.PURGE, 12 * day_s - 60)
    found = condition.maintenance(store, 12 * day_s)
    assert (found.state, found.text) == (
        OK,
        "last backup 48 h 0 min ago, last fsck of a dataset 24 h 0 min ago, "
        "last purge of a dataset 1 min 0 s ago",
    )
    assert condition.maintenance(store, 14 * day_s).state == WARNING
    store.put_record(history.HISTORY_RECORD, b"\xc1")
    assert condition.maintenance(store, 14 * day_s).state == OK


def test_quotas_and_keys_that_run_out_are_named() -> None:
    full = [(("user:ann", "bytes"), 0.9), (("dataset:pets", "files"), 0.8), (("user:bob", "files"), 0.1)]
    found = condition.quota_room(full)
    assert (found.state, found.text) == (
        WARNING,
        "nearly full: bytes of user:ann: 90%, files of dataset:pets: 80%",
    )
    assert condition.quota_room(full[2:]).state == OK

    def keys(*expires_s: int, token: int = 0) -> CheckRecord:
        found = {str(end_s): StoredKey(Verifier(b"", b""), 0, end_s) for end_s in expires_s}
        if token:
            found["token"] = StoredKey(Verifier(b"", b""), 0, token, {"pets": Right.READ})
        return condition.keys(Accounts({"ann": User(found)}), 86_400.0)

    assert keys(3 * 86_400).text == "the last key expires soon: that of ann on 1970-01-04"
    assert keys(3 * 86_400, token=200 * 86_400).state == WARNING
    assert keys(3 * 86_400, 0, token=2 * 86_400).state == OK  # it was rotated
    assert {keys(expires_s).state for expires_s in (0, 86_000, 100 * 86_400)} == {OK}


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (ReadOnlyStore(), "cannot be removed"),
        (LazyStore(), "still there"),
        (AlteringStore(), "not what was written"),
    ],
    ids=["no right to delete", "stale", "altered"],
)
def test_a_store_that_does_not_keep_its_promise(store: MemoryStore, said: str) -> None:
    found = condition.object_store(store)
    assert found.state == FAILURE and said in found.text and found.fix


def test_a_slow_store_is_worth_a_warning() -> None:
    times_s: Iterator[float] = iter((0.0, 7.0))
    assert condition.object_store(MemoryStore(), lambda: next(times_s)).state == WARNING


@pytest.mark.parametrize(
    ("read_ahead_kib", "request_kib", "state", "said"),
    [
        (0, 1280, WARNING, "4 KiB"),
        (16, 128, WARNING, "in 32 steps"),
        (128, 1280, OK, "requests of 1.2 MiB"),
        (4096, 128, OK, "read-ahead of 4.0 MiB"),
    ],
)
def test_read_ahead(read_ahead_kib: int, request_kib: int, state: str, said: str, tmp_path: Path) -> None:
    found = condition.disk(str(tmp_path), devices_of(tmp_path, tmp_path / "sys", read_ahead_kib, request_kib))
    assert found.state == state and said in found.text, found
    assert (f"echo {CHUNK_TARGET_BYTES // KIB} > {tmp_path}" in found.fix) == (state != OK)


def test_a_store_that_is_on_no_disk(tmp_path: Path) -> None:
    assert condition.disk(str(tmp_path), tmp_path / "none").state == OK


def test_metadata_in_memory_is_worth_a_warning(tmp_path: Path) -> None:
    for path, state in ((MEMORY, WARNING), (str(tmp_path / "metadata.db"), OK)):
        metadata = SqliteMetadata(path)
        assert [each.state for each in metadata.condition()] == [state]
        metadata.close()


def certificate(place: Path, days: int) -> str:
    """A file with a certificate that ends `days` after the first of 2030."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding

    key, begin = Ed25519PrivateKey.generate(), datetime.datetime(2020, 1, 1)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    end = datetime.datetime(2030, 1, 1) + datetime.timedelta(days)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end).sign(key, None)
    place.write_bytes(made.public_bytes(Encoding.PEM))
    return str(place)


@pytest.mark.parametrize(("days", "state"), [(-1, FAILURE), (5, WARNING), (300, OK)])
def test_a_certificate_expires(days: int, state: str, tmp_path: Path) -> None:
    now_s = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp()
    assert condition.tls(ON, certificate(tmp_path / "server.pem", days), now_s).state == state


def test_tls_that_is_off_or_cannot_be_read(tmp_path: Path) -> None:
    assert condition.tls(OFF, None, 0.0).state == WARNING
    assert condition.tls(ON, None, 0.0).state == OK
    assert condition.tls(ON, str(tmp_path / "none.pem"), 0.0).state == FAILURE


def test_etcd_that_is_away() -> None:
    pytest.importorskip("grpc", reason="needs the extra etcd")
    address = EtcdAddress((TcpAddress("127.0.0.1", free_port()),))
    found = condition.etcd(RegistrySettings(address, EtcdAccess(), []))
    assert found.state == FAILURE and "cannot reach etcd" in found.text


def test_etcd_that_others_can_change(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("word")
    password.chmod(0o600)
    user = EtcdAccess("root", str(password))
    with running_etcd(tmp_path / "etcd") as running:
        here = running.address
        network = EtcdAddress((*here.members, TcpAddress("192.0.2.1", 2379)))  # the first one answers

        def found(address: EtcdAddress, access: EtcdAccess) -> tuple[str, str, bool]:
            check = condition.etcd(RegistrySettings(address, access, []))
            assert str(address) in check.text
            return check.state, check.text, bool(check.fix)

        for address, others in (
            (here, "every user of this machine"),
            (network, "every host that can connect"),
        ):
            state, text, has_fix = found(address, EtcdAccess())
            assert (state, has_fix) == (WARNING, True) and others in text
        running.require_users()
        assert found(here, user)[::2] == (OK, False)
        state, text, has_fix = found(network, user)
        assert (state, has_fix) == (WARNING, True) and "used without TLS" in text


def test_metadata_that_is_away_is_a_failure_among_others() -> None:
    metadata = SqliteMetadata(MEMORY)
    metadata.close()
    found = condition.checks(MemoryStore(), metadata, [lambda: condition.tls(OFF, None, 0.0)])
    assert [each.name for each in found] == ["store", "metadata", "tls"]


def test_a_partition_has_the_read_ahead_of_its_disk(tmp_path: Path) -> None:
    devices = devices_of(tmp_path, tmp_path / "sys", 128, 1280)
    assert disk_reads(str(tmp_path), devices) == (
        tmp_path / "sys/disk/queue/read_ahead_kb",
        128 * KIB,
        1280 * KIB,
    )


def test_a_folder_without_a_disk(tmp_path: Path) -> None:
    assert disk_reads("/proc") is None
    assert disk_reads(str(tmp_path / "missing")) is None
    devices = devices_of(tmp_path, tmp_path / "sys", 128, 1280)
    (devices / "disk/queue/max_sectors_kb").write_text("many")
    assert disk_reads(str(tmp_path), devices) is None
