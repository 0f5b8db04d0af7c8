"""The node plugin, over its gRPC and with real mounts: the cases of csi-sanity for a node, and those of Kubernetes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dieselfs import __version__
from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied
from dieselfs.net.auth import read_key_file
from dieselfs.net.private_file import write_private_file
from dieselfs.rpc.login import kept_beside
from dieselfs_client.csi.messages import CALLS, entries, messages
from dieselfs_client.csi.plugin import NAME
from dieselfs_client.csi.volumes import AUDIENCE, TOKENS
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from lab.network import clear
from tests.client.conftest import FILES, needs_root
from tests.support.identity_provider import identity_provider
from tests.support.server import RunningServer, running_server

grpc = pytest.importorskip("grpc", reason="needs grpcio (the extra `csi`)")
pytestmark = [
    needs_root,
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse"),
]

CALL_TIMEOUT_S = 60.0
READER, BLOCK = {"mount": {}, "access_mode": {"mode": 3}}, {"block": {}, "access_mode": {"mode": 3}}
SERVICES = {call: service for service, calls in CALLS.items() for call in calls}


@dataclass
class Kubelet:
    """Calls a plugin as the kubelet does."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    def __call__(self, call: str, socket: str = "csi.sock", **fields: Any) -> Any:
        service = SERVICES[call]
        known = messages(service.rpartition(".")[0])
        request, response = (known[name] for name in CALLS[service][call])
        for name in ("secrets", "volume_context"):
            if name in fields:
                if name == "volume_context":
                    fields[name] = {"csi.storage.k8s.io/ephemeral": "false", **fields[name]}
                fields[name] = [{"key": key, "value": value} for key, value in fields[name].items()]
        with grpc.insecure_channel(f"unix:{self.folder}/{socket}") as channel:
            ask = channel.unary_unary(
                f"/{service}/{call}", lambda message: message.SerializeToString(), response.FromString
            )
            return ask(request(**fields), timeout=CALL_TIMEOUT_S, wait_for_ready=True)

    def fails(self, call: str, **fields: Any) -> tuple[str, str]:
        """The name of the code of an error, and its text."""
        with pytest.raises(grpc.RpcError) as raised:
            self(call, **fields)
        return raised.value.code().name, raised.value.details()

    def publish(self, name: str, **fields: Any) -> Path:
        target = self.folder / "pods" / name
        given = {"volume_capability": READER, "volume_context": {"dataset": "dl://letters"}, "readonly": True}
        self("NodePublishVolume", volume_id=name, target_path=str(target), **{**given, **fields})
        return target

    def unpublish(self, target: Path) -> None:
        self("NodeUnpublishVolume", volume_id=target.name, target_path=str(target))


@contextmanager
def plugin(folder: Path, server: str, key: Path | None = None) -> Iterator[Kubelet]:
    command = [sys.executable, "-c", "from dieselfs_client.main import csi; csi()", "--server", server]
    command += ["--endpoint", f"{folder}/csi.sock", "--plugins", str(folder), "--keys", f"{folder}/keys"]
    variables = {"HOME": str(folder), "XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command += ["--key-file", str(key)] if key else []
    with subprocess.Popen([*command, "--node", "node-1"], env={**os.environ, **variables}) as process:
        try:
            yield Kubelet(folder, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(CALL_TIMEOUT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("csi")
    (made / "pods").mkdir()
    yield made
    for mount in control.mounts():
        if mount.mountpoint.startswith(f"{made}/"):
            clear(Path(mount.mountpoint))


@pytest.fixture(scope="module")
def kubelet(folder: Path, server: RunningServer) -> Iterator[Kubelet]:
    with plugin(folder, server.tcp, server.user("node", letters="read")) as running:
        yield running


def test_what_the_plugin_is(kubelet: Kubelet) -> None:
    info = kubelet("GetPluginInfo")
    assert (info.name, info.vendor_version) == (NAME, __version__)
    assert kubelet("NodeGetInfo").node_id == "node-1"
    for call in ("Probe", "GetPluginCapabilities", "NodeGetCapabilities"):
        kubelet(call)
    found = kubelet("GetInfo", socket=f"{NAME}-reg.sock")
    assert (found.type, found.name, list(found.supported_versions)) == ("CSIPlugin", NAME, ["1.0.0"])
    assert found.endpoint == f"{kubelet.folder}/csi.sock"
    kubelet("NotifyRegistrationStatus", socket=f"{NAME}-reg.sock", plugin_registered=True)
    assert (kubelet.folder / "csi.sock").stat().st_mode & 0o077 == 0


def test_a_volume_is_published_once_and_taken_away_once(kubelet: Kubelet) -> None:
    target = kubelet.publish("a", volume_context={"dataset": "dl://letters/train", "memory": "64MB"})
    assert (target / "7.txt").read_bytes() == FILES["train/7.txt"]
    record = mount_at(str(target))
    kubelet.publish("a", volume_context={"dataset": "letters/train", "memory": "64MB"})
    assert mount_at(str(target)) == record
    given = {"volume_id": "a", "target_path": str(target), "volume_capability": READER}
    for other in ({"dataset": "letters", "memory": "64MB"}, {"dataset": "letters/train"}):
        assert kubelet.fails("NodePublishVolume", **given, volume_context=other)[0] == "ALREADY_EXISTS"
    assert mount_at(str(target)) == record
    with open(target / "7.txt", "rb") as opened:
        for _ in range(2):
            kubelet.unpublish(target)
            assert not target.exists()
        assert opened.read() == FILES["train/7.txt"]


def test_mounts_outlive_the_plugin(folder: Path, server: RunningServer, kubelet: Kubelet) -> None:
    own = folder / "own"
    (own / "pods").mkdir(parents=True)
    key = server.user("other", letters="read")
    with plugin(own, server.tcp, key) as first:
        target = first.publish("kept")
        first.process.kill()
    assert (target / "train/7.txt").read_bytes() == FILES["train/7.txt"]
    with plugin(own, server.tcp, key) as second:
        assert second.publish("kept") == target
        assert (target / "train/8.txt").read_bytes() == FILES["train/8.txt"]
        second.unpublish(target)
    assert not target.exists()


def test_the_secret_of_a_pod_is_its_identity(kubelet: Kubelet, server: RunningServer) -> None:
    """Volumes that users write into their pods never use the key of the node."""
    inline = {
        "dataset": "letters",
        "csi.storage.k8s.io/ephemeral": "true",
        "csi.storage.k8s.io/pod.name": "x",
    }
    target = str(kubelet.folder / "pods/inline")
    publication: dict[str, Any] = {
        "volume_id": "x",
        "target_path": target,
        "volume_capability": READER,
        "volume_context": inline,
    }
    assert kubelet.fails("NodePublishVolume", **publication)[0] == "INVALID_ARGUMENT"
    stranger = server.user("stranger").read_text()
    assert kubelet.fails("NodePublishVolume", **publication, secrets={"key": stranger})[0] == "NOT_FOUND"
    assert not Path(target).exists() and not list((kubelet.folder / "keys").iterdir())
    reader = server.user("ada", letters="read").read_text()
    kubelet("NodePublishVolume", **publication, secrets={"key": reader})
    assert (Path(target) / "train/7.txt").read_bytes() == FILES["train/7.txt"]
    (kept,) = (kubelet.folder / "keys").glob("*.key")
    assert kept.read_text() == reader and kept.stat().st_mode & 0o777 == 0o600
    kubelet.unpublish(Path(target))
    assert not list((kubelet.folder / "keys").iterdir())


def test_the_service_account_of_a_pod_is_its_identity(folder: Path, tmp_path: Path) -> None:
    own = folder / "tokens"
    (own / "pods").mkdir(parents=True)
    with identity_provider(tmp_path) as provider:
        settings = ["--oidc-issuer", provider.issuer, "--oidc-ca", str(provider.authority)]
        settings += ["--oidc-user-claim", "sub", "--oidc-groups", "system:serviceaccounts:team-a=vision"]

        def context(account: str, **attributes: str) -> dict[str, str]:
            token = provider.token({"sub": f"system:serviceaccount:{account}"})
            tokens = {"other": {"token": "x"}, AUDIENCE: {"token": token, "expirationTimestamp": "2100"}}
            ephemeral = {"csi.storage.k8s.io/ephemeral": "true", TOKENS: json.dumps(tokens)}
            return {"dataset": "letters", **ephemeral, **attributes}

        with running_server(tmp_path / "server", settings) as server, closing(server.client()) as client:
            with Dataset(server.settings(), "letters", must_exist=False) as dataset:
                dataset.put("a", b"text")
            client.add_members("vision", [])
            client.grant("group:vision", "letters", "read")
            with plugin(own, server.tcp, server.user("node")) as kubelet:
                wrong = {"volume_id": "x", "target_path": f"{own}/pods/x", "volume_capability": READER}
                for given, code in (
                    (context("team-b:train"), "NOT_FOUND"),
                    (context("team-a:train", **{TOKENS: '{"dieselfs": 1}'}), "INVALID_ARGUMENT"),
                    (
                        context("team-a:train", **{TOKENS: '{"dieselfs": {"token": "x"}}'}),
                        "PERMISSION_DENIED",
                    ),
                ):
                    assert kubelet.fails("NodePublishVolume", **wrong, volume_context=given)[0] == code
                assert not list((own / "pods").iterdir()) and not list((own / "keys").iterdir())
                target = kubelet.publish("x", volume_context=context("team-a:train"))
                assert (target / "a").read_bytes() == b"text"
                (kept,) = (own / "keys").glob("*.key")
                first = read_key_file(kept)
                assert first.user == "oidc:train@team-a"
                kubelet.publish("x", volume_context=context("team-a:train"))
                assert read_key_file(kept) == first
                login = json.loads(kept_beside(kept).read_text())
                write_private_file(kept_beside(kept), json.dumps({**login, "made_s": 0.0}).encode())
                kubelet.publish("x", volume_context=context("team-a:train"))
                assert read_key_file(kept).key_id != first.key_id, "it is renewed when it is due"
                kubelet.unpublish(target)
                assert not list((own / "keys").iterdir())


def test_several_pods_at_a_time(kubelet: Kubelet) -> None:
    with ThreadPoolExecutor(4) as pool:
        targets = list(pool.map(kubelet.publish, ("p1", "p2", "p3")))
        assert all((target / "train/7.txt").read_bytes() == FILES["train/7.txt"] for target in targets)
        list(pool.map(kubelet.unpublish, targets))
    assert not any(target.exists() for target in targets)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"volume_id": ""}, "INVALID_ARGUMENT", "volume_id"),
        ({"target_path": ""}, "INVALID_ARGUMENT", "target_path"),
        ({"target_path": "relative/x"}, "INVALID_ARGUMENT", "absolute"),
        ({"target_path": "{folder}/pods/../x"}, "INVALID_ARGUMENT", "absolute"),
        ({"volume_capability": None}, "INVALID_ARGUMENT", "volume_capability"),
        ({"volume_capability": BLOCK}, "INVALID_ARGUMENT", "block"),
        ({"volume_capability": {"mount": {}, "access_mode": {"mode": 5}}}, "INVALID_ARGUMENT", "read-only"),
        ({"volume_context": {}}, "INVALID_ARGUMENT", "dl://"),
        ({"volume_context": {"dataset": "/etc"}}, "INVALID_ARGUMENT", "dl://"),
        ({"volume_context": {"dataset": "numbers"}}, "NOT_FOUND", "numbers"),
        ({"volume_context": {"dataset": "letters", "disk": "/etc"}}, "INVALID_ARGUMENT", "'disk'"),
        ({"volume_context": {"dataset": "letters", "memory": "much"}}, "INVALID_ARGUMENT", "much"),
        ({"volume_context": {"dataset": "letters", "server": "unix:/x"}}, "INVALID_ARGUMENT", "tcp://"),
        ({"secrets": {"key": "x" * 100_000}}, "INVALID_ARGUMENT", "bytes"),
    ],
)
def test_a_wrong_volume_is_refused_and_leaves_nothing(
    kubelet: Kubelet, fields: dict[str, Any], code: str, text: str
) -> None:
    target = kubelet.folder / "pods/wrong"
    given: dict[str, Any] = {"volume_id": "wrong", "target_path": str(target), "volume_capability": READER}
    given |= {"volume_context": {"dataset": "letters"}}
    given |= fields
    given["target_path"] = given["target_path"].replace("{folder}", str(kubelet.folder))
    assert (found := kubelet.fails("NodePublishVolume", **given))[0] == code and text in found[1]
    assert not target.exists() and not list((kubelet.folder / "keys").iterdir())


@pytest.mark.parametrize("lost", ["volume_id", "target_path"])
def test_an_unpublication_names_volume_and_path(kubelet: Kubelet, lost: str) -> None:
    given = {"volume_id": "x", "target_path": str(kubelet.folder / "pods/x"), lost: ""}
    assert kubelet.fails("NodeUnpublishVolume", **given) == ("INVALID_ARGUMENT", f"{lost}: missing")


def test_a_plugin_that_is_not_registered_ends(folder: Path, server: RunningServer, kubelet: Kubelet) -> None:
    own = folder / "refused"
    own.mkdir()
    with plugin(own, server.tcp) as running:
        running(
            "NotifyRegistrationStatus",
            socket=f"{NAME}-reg.sock",
            plugin_registered=False,
            error="other version",
        )
        assert running.process.wait(CALL_TIMEOUT_S) == 6


def test_a_folder_of_keys_that_others_can_enter_is_refused_at_the_start(
    folder: Path, server: RunningServer, capfd: pytest.CaptureFixture[str]
) -> None:
    own = folder / "open"
    (own / "keys").mkdir(parents=True)
    (own / "keys").chmod(0o755)  # as the kubelet makes a folder of the node
    with plugin(own, server.tcp) as running:
        assert running.process.wait(CALL_TIMEOUT_S) == AccessDenied.exit_code
    assert f"{own}/keys is not a folder that only this user can enter" in capfd.readouterr().err


def test_maps_are_lists_of_entries_on_the_wire() -> None:
    request = messages("csi.v1")["NodePublishVolumeRequest"]
    packed = request(secrets=[{"key": "a", "value": "b"}]).SerializeToString()
    assert packed == b"\x3a\x06\x0a\x01a\x12\x01b"  # field 7: the fields 1 and 2 of an entry
    assert entries(request.FromString(packed).secrets) == {"a": "b"}
