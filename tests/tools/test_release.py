"""What `make release` makes and how it tries it; data of the release before."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from release import trial
from release.__main__ import SIGNED, compare, sign
from release.archives import Entry, image, members, tar, tar_gz
from release.building import Checkout, chart
from release.debian import package
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY

KEPT = REPOSITORY / "tests/samples/release-0.1/home.tar.gz"
TIME_S = 1_700_000_000
FILES = {
    "b/run": Entry(b"#!/bin/sh\n", is_program=True),
    "a": Entry(b"content"),
    "b/link": Entry(link="../a"),
}
TIMEOUT_S = 60.0


@pytest.mark.processes
def test_an_installation_stores_reads_back_and_mounts(tmp_path: Path) -> None:
    trial.try_out(Path(sys.executable), tmp_path)


@pytest.mark.parametrize(
    "lost",
    [
        "share/man/man1/dlcmd-put.1",
        "share/bash-completion/completions/dlcmd",
        "share/zsh/site-functions/_dlcmd",
        "share/fish/vendor_completions.d/dlcmd.fish",
        "share/dieselfs/systemd/dieselfs-server.service",
    ],
)
def test_a_file_that_a_wheel_lacks_is_named(lost: str, tmp_path: Path) -> None:
    settings = tomllib.loads((trial.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for place, patterns in settings["data-files"].items():
        (tmp_path / place).mkdir(parents=True)
        for pattern in patterns:
            for path in trial.ROOT.glob(pattern):
                shutil.copy(path, tmp_path / place)
    trial.check_files(tmp_path)
    (tmp_path / lost).write_text("old")
    with pytest.raises(SystemExit, match=lost):
        trial.check_files(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(SystemExit, match=lost):
        trial.check_files(tmp_path)


def test_an_archive_has_the_bytes_of_its_files_alone(tmp_path: Path) -> None:
    """Neither the order, nor the clock, nor what wrote it before."""
    packed = tar_gz(FILES, TIME_S)
    assert tar_gz(dict(reversed(FILES.items())), TIME_S) == packed
    assert dict(members(packed)) == FILES
    (tmp_path / "packed.tar").write_bytes(tar(FILES, TIME_S))
    with tarfile.open(tmp_path / "packed.tar") as archive:
        assert archive.getnames() == ["a", "b", "b/link", "b/run"]
    subprocess.run(["tar", "-C", tmp_path, "-xf", tmp_path / "packed.tar"], check=True, timeout=TIMEOUT_S)
    assert (tmp_path / "b/link").read_bytes() == b"content"
    assert (tmp_path / "b/run").stat().st_mtime == TIME_S and os.access(tmp_path / "b/run", os.X_OK)


def test_an_image_does_not_tell_where_it_was_built() -> None:
    def built(host: str) -> dict[str, Entry]:
        config = {
            "container": host,
            "parent": f"sha256:{host}",
            "config": {"Hostname": host, "User": "dieselfs"},
            "rootfs": {},
        }
        manifest = [
            {"Config": f"{host}.json", "RepoTags": ["dieselfs:1", f"localhost/{host}"], "Layers": ["1.tar"]}
        ]
        return {
            f"{host}.json": Entry(json.dumps(config).encode()),
            "manifest.json": Entry(json.dumps(manifest).encode()),
            "1.tar": Entry(b"layer"),
            f"{host}/layer.tar": Entry(link="../1.tar"),
        }

    made = image(built("a"))
    assert made == image(built("b"))
    (manifest,) = json.loads(made["manifest.json"].content)
    config = made[manifest["Config"]].content
    assert manifest["Config"] == f"{sha256(config).hexdigest()}.json" and manifest["Layers"] == ["1.tar"]
    assert manifest["RepoTags"] == ["dieselfs:1"]
    assert json.loads(config) == {"config": {"User": "dieselfs"}, "rootfs": {}}


def test_a_base_is_made_of_the_packages_of_the_named_mirrors(tmp_path: Path) -> None:
    """With programs that note how they are called: the real ones take minutes, and `make release` runs them."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("dirname", "git", "mktemp", "realpath", "rm", "sed", "sh", "cp", "cat", "touch"):
        (programs / name).symlink_to(str(shutil.which(name)))

    def build(**variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(REPOSITORY / "deploy/container/build.sh"), "dieselfs:x"]
        settings = {"PATH": str(programs), "TMPDIR": str(tmp_path), "BASE": "debian", **variables}
        return subprocess.run(
            command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
        )

    refused = build()
    assert refused.returncode == 1
    assert refused.stderr == "build.sh: BASE=debian needs the package mmdebstrap\n"
    note = f'echo "${{0##*/}} $*" >> {calls}\n'
    last = 'for last in "$@"; do :; done\n'
    (programs / "buildah").write_text(f"#!/bin/sh\n{note}")
    (programs / "mmdebstrap").write_text(
        f'#!/bin/sh\n{note}{last}cat "$last" >> {calls}\ntouch "${{last%/*}}/base.tar"\n'
    )
    for name in ("buildah", "mmdebstrap"):
        (programs / name).chmod(0o755)
    (tmp_path / "mirrors").write_text("deb http://mirror.example.com bookworm main\n")
    assert build(SOURCES="mirrors", SOURCE_DATE_EPOCH="7").stderr == ""
    packages, mirror, base, built, removed = calls.read_text().splitlines()
    assert packages.startswith("mmdebstrap ") and " bookworm " in packages
    assert mirror == "deb http://mirror.example.com bookworm main"
    for call in (base, built):
        assert call.startswith("buildah build --format docker --timestamp 7 ")
    assert "--tag localhost/dieselfs-base:bookworm " in base
    assert "--tag dieselfs:x " in built and "--build-arg BASE=localhost/dieselfs-base:bookworm " in built
    assert removed == "buildah rmi --force localhost/dieselfs-base:bookworm"
    assert not list(tmp_path.glob("tmp.*"))


def test_debian_reads_the_package(tmp_path: Path) -> None:
    """An environment that was made elsewhere: its programs and pages are where Debian looks for them."""
    environment = {
        "bin/dlcmd": Entry(b"#!/tmp/x/bin/python\nmain()\n", is_program=True),
        "bin/activate": Entry(b"VIRTUAL_ENV=/tmp/x\n"),
        "pyvenv.cfg": Entry(b"command = python -m venv /tmp/x\n"),
        "lib/python3.11/site-packages/x-1.dist-info/RECORD": Entry(b"../../../bin/dlcmd,,\n"),
        "lib/python3.11/site-packages/x.py": Entry(b"x = 1\n"),
        "share/dieselfs/systemd/dieselfs-server.service": Entry(b"[Unit]\n"),
        "share/man/man1/dlcmd.1": Entry(b".TH dlcmd 1\n"),
    }
    made = [
        package(environment, "/tmp/x", {"server.toml": b"# settings\n"}, "1.2.3", "x86_64", TIME_S)
        for _ in "ab"
    ]
    assert made[0] == made[1]
    found = tmp_path / "dieselfs.deb"
    found.write_bytes(made[0])
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")

    def dpkg_deb(*words: str | Path) -> str:
        return subprocess.run(
            ["dpkg-deb", *words], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
        ).stdout

    assert dpkg_deb("--show", found) == "dieselfs\t1.2.3\n"
    dpkg_deb("--raw-extract", found, tmp_path / "root")
    root = tmp_path / "root"
    assert (root / "DEBIAN/conffiles").read_text() == "/etc/dieselfs/server.toml\n"
    for script in ("postinst", "prerm"):
        subprocess.run(["sh", "-n", root / "DEBIAN" / script], check=True, timeout=TIMEOUT_S)
    files = {
        str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()
    }
    assert {file for file in files if not file.startswith("DEBIAN/")} == {
        "etc/dieselfs/server.toml",
        "usr/bin/dlcmd",
        "usr/bin/dieselfs-mount",
        "usr/bin/dieselfs-server",
        "usr/sbin/mount.dieselfs",
        "usr/sbin/umount.dieselfs",
        "usr/lib/systemd/system/dieselfs-server.service",
        "usr/share/man/man1/dlcmd.1",
        "opt/dieselfs/bin/dlcmd",
        "opt/dieselfs/bin/python",
        "opt/dieselfs/bin/python3",
        "opt/dieselfs/bin/python3.11",
        "opt/dieselfs/lib/python3.11/site-packages/x.py",
        "opt/dieselfs/lib64",
        "opt/dieselfs/pyvenv.cfg",
    }
    assert (root / "opt/dieselfs/bin/dlcmd").read_text() == "#!/opt/dieselfs/bin/python\nmain()\n"
    assert (root / "opt/dieselfs/bin/python").readlink() == Path("/usr/bin/python3.11")


def test_helm_reads_the_packed_chart(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk (the extra `deploy`)")
    (tmp_path / "chart.tgz").write_bytes(chart(REPOSITORY, TIME_S))
    with helm.Chart.load(tmp_path / "chart.tgz") as loaded:
        assert "StatefulSet" in "".join(loaded.render(values={}, name="x", namespace="y").values())


def test_a_file_that_differs_when_built_again_is_named(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_bytes(b"1")
    compare(tmp_path / "first", tmp_path / "second")
    (tmp_path / "first/changed").write_bytes(b"1")
    (tmp_path / "second/changed").write_bytes(b"2")
    (tmp_path / "second/new").write_bytes(b"")
    with pytest.raises(SystemExit, match="built again: changed, new"):
        compare(tmp_path / "first", tmp_path / "second")


def test_a_changed_file_is_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, timeout=TIMEOUT_S)
    monkeypatch.setattr("release.building.ROOT", tmp_path)
    checkout = Checkout.clean()
    assert checkout.before(None) == ""
    assert checkout.before("HEAD") == checkout.commit
    with pytest.raises(SystemExit, match="v9: no such commit here"):
        checkout.before("v9")
    (tmp_path / "file").write_text("2")
    with pytest.raises(SystemExit, match="commit first: file"):
        Checkout.clean()


def test_a_signature_names_every_file(tmp_path: Path) -> None:
    """Verified as docs/internals/releases.md says."""
    out, key = tmp_path / "dist", tmp_path / "key"
    out.mkdir()
    (out / "dieselfs.whl").write_bytes(b"wheel")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=TIMEOUT_S)
    sign(out, key)
    assert (out / "SHA256SUMS").read_text() == f"{sha256(b'wheel').hexdigest()}  dieselfs.whl\n"
    public = (tmp_path / "key.pub").read_text()
    (tmp_path / "signers").write_text(f"dieselfs {public}")
    command = ["ssh-keygen", "-Y", "verify", "-f", str(tmp_path / "signers"), "-I", "dieselfs", "-n", SIGNED]
    command += ["-s", str(out / "SHA256SUMS.sig")]

    def verified() -> bool:
        with open(out / "SHA256SUMS", "rb") as sums:
            return subprocess.run(command, stdin=sums, capture_output=True, timeout=TIMEOUT_S).returncode == 0

    assert verified()
    (out / "SHA256SUMS").write_text("other")
    assert not verified()


def test_the_data_of_release_0_1_are_read_and_written(tmp_path: Path) -> None:
    """A home that release 0.1 has left: two generations, of which one has a tag."""
    home = tmp_path / "home"
    for name, entry in members(KEPT.read_bytes()):
        (home / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / name).write_bytes(entry.content)
        (home / name).chmod(0o600)
    dlcmd = Dlcmd(home, tmp_path)
    dlcmd("get", "-r", "dl://x@first/", "first")
    assert sorted(os.listdir(tmp_path / "first")) == ["1.bin", "2.bin", "3.bin", "folder"]
    dlcmd("get", "-r", "dl://x/", "now")
    assert sorted(os.listdir(tmp_path / "now")) == ["1.bin", "3.bin", "folder"]
    digest = "7269607bdaa9000c44709df9a6413c87b5b70545c1378437e66b9c1c0a2e209d"
    assert sha256((tmp_path / "now/folder/link").read_bytes()).hexdigest() == digest
    (tmp_path / "new").write_bytes(b"new")
    dlcmd("put", "new", "dl://x/")
    assert dlcmd("cat", "dl://x/new").stdout == b"new"
    dlcmd("verify", "dl://x")
    dlcmd("fsck", "dl://x")
