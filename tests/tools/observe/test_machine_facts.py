"""What is read of this machine agrees with what other programs say of it."""

import os
import resource
import shutil
from pathlib import Path

import pytest

from dieselfs_tools.observe import machine_facts as module
from dieselfs_tools.observe.machine_facts import machine_facts


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
    monkeypatch.setattr(module, "_FUSE_CONFIG", place)
    assert machine_facts({}).allows_other is allowed


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("[always] madvise never\n", "always"), ("always madvise [never]\n", "never"), (None, "")],
)
def test_huge_pages(text: str | None, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "enabled"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(module, "_HUGE_PAGES", place)
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
    monkeypatch.setattr(module, "_KNOWN_FILESYSTEMS", tmp_path / "filesystems")
    monkeypatch.setattr(module, "_MODULES", tmp_path / "modules")
    assert machine_facts({}).filesystems == found


@pytest.mark.parametrize(("text", "number"), [("65530\n", 65_530), ("many\n", None), (None, None)])
def test_mappings(
    text: str | None, number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "max_map_count"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(module, "_MAPPINGS", place)
    assert machine_facts({}).mappings == number
