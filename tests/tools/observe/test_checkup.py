"""The checks of dlcmd doctor, each with what is fine and with the fault that it is for."""

import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dieselfs import __version__
from dieselfs.limits import GIB, KIB, MIB
from dieselfs.net.address import TcpAddress, UnixAddress
from dieselfs.rpc.records import FAILURE, OK, WARNING
from dieselfs.rpc.server_checks import versions
from dieselfs.settings.table import FUSE, IMAGE, OFF, ON
from dieselfs.telemetry.registry import Report
from dieselfs_client.mount.points.mounting import ReadAhead
from dieselfs_client.mount.points.view_choice import Facts as MountFacts
from dieselfs_tools.cli.session import Session
from dieselfs_tools.observe import checkup
from dieselfs_tools.observe.checkup import (
    DENIED,
    MISSING,
    MachineFacts,
    clock,
    machine_checks,
    machine_facts,
    peers,
    server_checks,
    transport,
)
from lab.ports import free_port
from tests.support.server import RunningServer, running_server

GOOD = MachineFacts(
    mount=MountFacts(True, False, (6, 18)),
    kernel="6.18.2-amd64",
    filesystems=frozenset(("erofs", "overlay", "fuse")),
    fuse_device=OK,
    has_fusermount=True,
    allows_other=False,
    descriptors=20_000,
    mappings=65_530,
    memory_bytes=24 * GIB,
    memory_limit="the machine's memory",
    available_bytes=20 * GIB,
    huge_pages="madvise",
    read_aheads=(ReadAhead("/mnt/a", FUSE, "0:50", MIB), ReadAhead("erofs-1", IMAGE, "erofs-1", 64 * KIB)),
    runtime_fault="",
    folders={"cache folder": (Path("/home/ada/.cache/dieselfs"), True, 50 * GIB)},
)
USER = MountFacts(False, False, (6, 18))
OF_USER = ReadAhead("/home/ada/a", FUSE, "0:51", 128 * KIB)
OLD = {"mount": MountFacts(True, False, (5, 10)), "kernel": "5.10.0-28-amd64"}
OLDEST = {"mount": MountFacts(True, False, (4, 19)), "kernel": "4.19.0-26-amd64"}
RACED = ReadAhead("erofs-2", IMAGE, "erofs-2", 128 * KIB)


def test_nothing_is_found_on_a_good_machine() -> None:
    assert {each.state for each in machine_checks(GOOD)} == {OK}
    assert not any(each.fix for each in machine_checks(GOOD))
    unlimited = replace(GOOD, memory_bytes=None, descriptors=-1, mappings=None, huge_pages="")
    assert {each.state for each in machine_checks(unlimited)} == {OK}


@pytest.mark.parametrize(
    ("change", "name", "state", "said", "fix"),
    [
        (OLD, "kernel", WARNING, "5.10.0-28-amd64 is new enough for mounts", "6.9 for reads that survive"),
        (OLD, "view", WARNING, "view overlay", "6.12"),
        (OLDEST, "kernel", FAILURE, "too old", "5.1 for mounts, 5.11 for the view overlay without root"),
        ({"fuse_device": MISSING}, "fuse", FAILURE, "nothing can be mounted", "--device /dev/fuse"),
        ({"fuse_device": DENIED}, "fuse", FAILURE, "nothing can be mounted", "chmod 0666 /dev/fuse"),
        ({"mount": USER, "has_fusermount": False}, "fuse", FAILURE, "fusermount3", "dlcmd run"),
        ({"mount": USER}, "view", WARNING, "view fuse", "dlcmd run"),
        ({"mount": MountFacts(True, False, (6, 1))}, "view", WARNING, "view overlay", "6.12"),
        ({"filesystems": frozenset(("overlay", "fuse"))}, "view", WARNING, "no EROFS", "CONFIG_EROFS"),
        ({"filesystems": frozenset(("fuse",))}, "view", WARNING, "view fuse", "CONFIG_OVERLAY_FS"),
        ({"mount": USER}, "allow_other", WARNING, "only you", "user_allow_other"),
        ({"descriptors": 1024}, "open files", WARNING, "1,024", "ulimit -Hn"),
        ({"mappings": 1000}, "mappings", WARNING, "1,000", "vm.max_map_count"),
        ({"memory_bytes": 8 * MIB, "memory_limit": "the cgroup /job"}, "memory", FAILURE, "/job", "at least"),
        ({"memory_bytes": 500 * MIB}, "memory", WARNING, "500 MiB", "memory.max"),
        ({"available_bytes": 100 * MIB}, "memory", WARNING, "100 MiB are free", "--memory"),
        ({"huge_pages": "always"}, "huge pages", WARNING, "always", "madvise"),
        ({"read_aheads": (OF_USER,)}, "read-ahead", WARNING, "/home/ada/a", "1024 > /sys/class/bdi/0:51"),
        ({"read_aheads": (RACED,)}, "read-ahead", WARNING, "128 KiB around", "64 > /sys/class/bdi/erofs-2"),
        ({"runtime_fault": "/tmp/x is not a folder"}, "sockets", FAILURE, "/tmp/x", "XDG_RUNTIME_DIR"),
        ({"folders": {"home": (Path("/h"), False, GIB)}}, "home", FAILURE, "cannot be written", "chmod /h"),
        ({"folders": {"home": (Path("/h"), True, MIB)}}, "home", WARNING, "1.0 MiB free", "larger disk"),
    ],
)
def test_a_fault_is_found_with_its_remedy(
    change: dict[str, Any], name: str, state: str, said: str, fix: str
) -> None:
    (found,) = (each for each in machine_checks(replace(GOOD, **change)) if each.name == name)
    assert (found.state, said in found.text, fix in found.fix) == (state, True, True), found


@pytest.mark.parametrize(
    ("linux", "lacks"), [((6, 4), 3), ((6, 5), 2), ((6, 9), 1), ((6, 11), 1), ((6, 12), 0), ((7, 0), 0)]
)
def test_a_kernel_is_upgraded_for_what_it_lacks(linux: tuple[int, int], lacks: int) -> None:
    kernel, *_ = machine_checks(replace(GOOD, mount=MountFacts(True, False, linux)))
    assert kernel.name == "kernel" and kernel.state == (WARNING if lacks else OK)
    assert kernel.fix.count(" for ") == lacks


def test_a_user_who_may_share_mounts_is_told_so() -> None:
    found = {each.name: each.state for each in machine_checks(replace(GOOD, mount=USER, allows_other=True))}
    assert found["allow_other"] == OK


def test_the_facts_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = machine_facts({"home": tmp_path / "not" / "there"})
    assert found.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert found.has_fusermount == (shutil.which("fusermount3") is not None)
    assert found.kernel == os.uname().release and found.kernel.startswith("{}.{}".format(*found.mount.linux))
    assert found.memory_bytes and found.runtime_fault == ""
    folder, is_writable, free_bytes = found.folders["home"]
    assert folder == tmp_path / "not" / "there" and is_writable and free_bytes > 0


def test_a_folder_of_sockets_that_others_can_enter_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "dieselfs").mkdir(mode=0o755)
    assert "only this user" in machine_facts({}).runtime_fault


@pytest.mark.parametrize(
    ("text", "allowed"), [("user_allow_other\n", True), ("#user_allow_other\n", False), (None, False)]
)
def test_the_configuration_of_fuse(
    text: str | None, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "fuse.conf"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(checkup, "_FUSE_CONFIG", place)
    assert machine_facts({}).allows_other is allowed


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("[always] madvise never\n", "always"), ("always madvise [never]\n", "never"), (None, "")],
)
def test_huge_pages(text: str | None, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "enabled"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(checkup, "_HUGE_PAGES", place)
    assert machine_facts({}).huge_pages == chosen


@pytest.mark.parametrize(
    ("listed", "modules", "found"),
    [
        ("nodev\tfuse\nnodev\toverlay\n\terofs\n", {}, {"fuse", "overlay", "erofs"}),
        ("nodev\tfuse\n", {"modules.builtin": "kernel/fs/overlayfs/overlay.ko\n"}, {"fuse", "overlay"}),
        (
            "nodev\tfusectl\n",
            {"modules.dep": "kernel/fs/erofs/erofs.ko.xz: kernel/lib/lz4.ko.xz\n"},
            {"erofs"},
        ),
        ("", {"modules.dep": "kernel/fs/overlayfs/overlayfs.ko:\nkernel/x/not-fuse.ko:\n"}, {"overlay"}),
        (None, {}, set()),
    ],
    ids=["loaded", "built in", "a module", "another name", "unknown"],
)
def test_filesystems(
    listed: str | None,
    modules: dict[str, str],
    found: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if listed is not None:
        (tmp_path / "filesystems").write_text(listed)
    folder = tmp_path / "modules" / os.uname().release
    folder.mkdir(parents=True)
    for name, text in modules.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(checkup, "_KNOWN_FILESYSTEMS", tmp_path / "filesystems")
    monkeypatch.setattr(checkup, "_MODULES", tmp_path / "modules")
    assert machine_facts({}).filesystems == found


@pytest.mark.parametrize(("text", "number"), [("65530\n", 65_530), ("many\n", None), (None, None)])
def test_mappings(
    text: str | None, number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "max_map_count"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(checkup, "_MAPPINGS", place)
    assert machine_facts({}).mappings == number


@pytest.mark.parametrize(
    ("server_s", "state", "said"),
    [
        (1000.2, OK, "agrees"),
        (1003.0, OK, "agrees"),  # less than seconds apart
        (1060.0, WARNING, "59 s behind"),
        (900.0, WARNING, "ahead of"),
        (10.0, FAILURE, "refuses what is written here"),
        (9000.0, WARNING, "behind"),
    ],
)
def test_clocks(server_s: float, state: str, said: str) -> None:
    found = clock(server_s, 1000.0, 1001.0)
    assert found.state == state and said in found.text, found
    assert bool(found.fix) == (state != OK)


@pytest.mark.parametrize(
    ("server", "setting", "state"),
    [
        (UnixAddress("/run/x"), OFF, OK),
        (TcpAddress("storage", 7070), ON, OK),
        (TcpAddress("127.0.0.1", 7070), OFF, OK),
        (TcpAddress("storage", 7070), OFF, WARNING),
    ],
    ids=str,
)
def test_requests_in_the_clear(server: Any, setting: str, state: str) -> None:
    assert transport(server, setting).state == state


def test_servers_of_another_version() -> None:
    assert versions({"a": __version__, "b": __version__}).state == OK
    found = versions({"a": __version__, "b": "0.0.1"})
    assert found.state == WARNING and "b has 0.0.1" in found.text and "a has" not in found.text


def report(**infos: Any) -> Report:
    return Report({}, [], {name.replace("_", ".", 1): value for name, value in infos.items()})


def test_peers_that_are_suspected() -> None:
    job = {"job_name": "j", "job_members": ["a", "b", "c"]}
    found = [
        *peers(
            [
                report(),
                report(**job, job_suspected=[]),
                report(**job, job_suspected=["b", "c"]),
                report(**job, job_suspected=[], membership_out="another snapshot"),
            ]
        )
    ]
    assert [each.state for each in found] == [OK, WARNING, FAILURE]
    assert "2 of 3 nodes do not answer: b, c" in found[1].text and "another snapshot" in found[2].text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def session(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DIESELFS_HOME", str(tmp_path / "home"))
    session = Session(server=server.unix)
    yield session
    session.close()


def test_a_clock_that_is_ahead(session: Session) -> None:
    states = {each.name: each.state for each in server_checks(session, lambda: time.time() + 3600)}
    assert states["clock"] == FAILURE and states["store"] == states["metadata"] == OK


def test_one_of_two_servers_is_away(session: Session, server: RunningServer) -> None:
    session.server = f"{server.unix},tcp://127.0.0.1:{free_port()}"
    found = [*server_checks(session)]
    assert [each.state for each in found if each.name == "clock"] == [OK]
    (away,) = (each for each in found if each.name == "server")
    assert away.state == FAILURE and "127.0.0.1" in away.text


def test_an_ordinary_user_gets_the_clock_alone(
    session: Session, server: RunningServer, tmp_path: Path
) -> None:
    key = session.client.add_key("ada")
    place = tmp_path / "ada.key"
    place.write_text(key.text())
    place.chmod(0o600)
    other = Session(server=server.tcp, key_file=str(place))
    assert [each.name for each in server_checks(other)] == ["server", "transport"]  # without any right
    session.client.grant("ada", "*", "read")
    names = [each.name for each in server_checks(other)]
    other.close()
    assert names == ["clock", "transport"]
