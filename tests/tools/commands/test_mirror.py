"""dlcmd mirror: a dataset of another site, shown whole, signed by that site, and read while that is away."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.bundle import is_bundled
from dieselfs.dataset import Dataset
from dieselfs.errors import (
    EXIT_NOT_FOUND,
    EXIT_PARTIAL,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    AccessDenied,
    Damaged,
    InvalidInput,
    NotFound,
)
from dieselfs.net.auth import read_key_file
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs_server.datasets.commit import promotion_record
from dieselfs_server.store.posix import PosixStore
from tests.support.dlcmd import TIMEOUT_S, Dlcmd, wait_until
from tests.support.server import RunningServer

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"


class Origin:
    """A dataset `name` at a server that is the remote `site1` of `dlcmd`."""

    def __init__(self, dlcmd: Dlcmd, server: RunningServer, name: str) -> None:
        self.server, self.name, self.place = server, name, f"dl://site1:{name}"
        self.dlcmd = Dlcmd(dlcmd.folder / "home", dlcmd.folder, {"DIESELFS_SERVER": server.unix})
        self.folder, self.config = dlcmd.folder / "tree", dlcmd.folder / ".config/dieselfs/config.toml"
        for number in range(6):
            place = self.folder / f"class {number % 2}" / f"{number}.bin"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(os.urandom(700_000))
        (self.folder / "latest").symlink_to("class 0/0.bin")
        self.sync()
        self.key_file = server.user(name[-50:].strip("-"), **{name: "read"})
        self.config.parent.mkdir(parents=True)
        self.connect(server.tcp)

    def connect(self, address: str) -> None:
        self.config.write_text(f'[remotes.site1]\nserver = "{address}"\nkey_file = "{self.key_file}"\n')

    def sync(self) -> None:
        self.dlcmd("sync", "-qy", "--delete", "--chunk-size", "1M", "tree/", f"dl://{self.name}/")


@pytest.fixture
def origin(dlcmd: Dlcmd, server: RunningServer, dataset: str) -> Iterator[Origin]:
    yield Origin(dlcmd, server, dataset)
    dlcmd.forked(["rb", "-y", "--with-tags", dataset])


def digest(dlcmd: Dlcmd, place: str) -> str:
    return str(dlcmd("verify", "--json", place).objects[0]["digest"])


def test_a_mirror_shows_one_whole_generation_after_the_other(dlcmd: Dlcmd, origin: Origin) -> None:
    here = f"dl://{origin.name}"
    once = ("mirror", "--once", "--json", origin.place)
    assert dlcmd("mirror", "-n", "--json", origin.place).summary["dry_run"] is True
    dlcmd("ls", here, exit_code=EXIT_NOT_FOUND)
    (first,) = dlcmd(*once).objects
    assert bytes.fromhex(first["signer_pin"]) in read_key_file(str(origin.key_file)).pins
    before = digest(dlcmd, here)
    assert before == digest(dlcmd, "tree")
    assert dlcmd("ls", "-lR", here).lines == dlcmd("ls", "-lR", f"{origin.place}/").lines
    assert dlcmd("cat", f"{here}/class 0/0.bin").stdout == (origin.folder / "class 0/0.bin").read_bytes()

    for name in ("class 0", "class 1"):  # so that chunks die
        shutil.rmtree(origin.folder / name)
    for number in range(6, 10):
        (origin.folder / f"{number}.bin").write_bytes(os.urandom(700_000))
    origin.sync()
    killed = dlcmd.struck(signal.SIGKILL, 0, PUT_CHUNK, 1, *once)
    assert killed.returncode == -signal.SIGKILL
    assert digest(dlcmd, here) == before
    (behind,) = dlcmd("mirror", "--status", "--json", here).objects
    assert behind["generation"] == first["generation"] and behind["generations_behind"] > 0
    settings = Settings.load(home=dlcmd.home, environment=dlcmd.environment())
    with closing(Dataset(settings, origin.name)) as reader:  # stays at its generation
        header = reader.snapshot.header
        reader.client.pin(origin.name, "reader", header.generation, header.updated_ns, 600)
        follower = dlcmd.start("mirror", "-q", "--every", "100ms", origin.place)
        try:
            wait_until(lambda: reader.client.dataset(origin.name).generation > header.generation)
        finally:
            follower.terminate()
            assert follower.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        (shown,) = dlcmd("mirror", "--status", "--json", here).objects
        assert shown["generations_behind"] == 0
        assert digest(dlcmd, here) == digest(dlcmd, "tree") != before

        assert dlcmd("purge", "--json", "--grace", "0s", here).summary["removed_chunks"] == 0
        assert len(reader.get("class 0/0.bin")) == 700_000
        reader.client.pin(origin.name, "reader", header.generation, header.updated_ns, 0)
    assert dlcmd("purge", "--json", "--grace", "0s", here).summary["removed_chunks"] > 0
    assert "clean" in dlcmd("fsck", "--deep", here).text
    origin.connect("unix:/nowhere")  # the site is away
    dlcmd(*once, exit_code=EXIT_UNAVAILABLE)
    assert digest(dlcmd, here) == digest(dlcmd, "tree")
    late = dlcmd("mirror", "--status", "--max-lag", "1ms", here, exit_code=EXIT_PARTIAL)
    assert "is behind for longer than" in late.stderr


def test_a_mirror_does_not_begin_again_while_copies_use_its_chunks(dlcmd: Dlcmd, origin: Origin) -> None:
    (origin.folder / "large.bin").write_bytes(content := os.urandom(3_000_000))
    origin.sync()
    here, copy = f"dl://{origin.name}", f"dl://{origin.name}-copy"
    dlcmd("mirror", "--once", origin.place)
    dlcmd("cp", "-r", here, copy)
    dlcmd("rb", "-y", "--with-tags", origin.name)
    refused = dlcmd("mirror", "--once", origin.place, exit_code=EXIT_USAGE)
    assert "copies still use chunks" in refused.stderr and refused.stderr.count("\n") == 1
    assert dlcmd("cat", f"{copy}/large.bin").stdout == content
    dlcmd("rb", "-y", f"{origin.name}-copy")
    dlcmd("mirror", "--once", origin.place)
    assert dlcmd("cat", f"{here}/large.bin").stdout == content


def test_copies_without_bytes_of_their_own_are_mirrored_and_promoted(dlcmd: Dlcmd, origin: Origin) -> None:
    """The origin has their chunks in a bundle, the mirror each as an object with the same ID."""
    here = f"dl://{origin.name}"
    (origin.folder / "large.bin").write_bytes(content := os.urandom(9_000_000))
    origin.sync()
    origin.dlcmd("cp", f"{here}/large.bin", f"{here}/copy.bin")
    with closing(Dataset(origin.server.settings(), origin.name)) as data:
        tree = data.snapshot
        bundled = [each for each in map(tree.chunk_id, range(tree.chunk_count)) if is_bundled(each)]
    assert len(bundled) > 1
    dlcmd("mirror", "--once", origin.place)
    assert dlcmd("cat", f"{here}/copy.bin").stdout == content
    dlcmd("mirror", "--promote", "--force", here)
    dlcmd("rm", f"{here}/large.bin")
    dlcmd("purge", "--grace", "0s", here)
    assert dlcmd("cat", f"{here}/copy.bin").stdout == content
    assert "clean" in dlcmd("fsck", "--deep", here).text


def test_nobody_else_writes_a_mirror(dlcmd: Dlcmd, origin: Origin) -> None:
    here = f"dl://{origin.name}"
    dlcmd("mirror", "--once", origin.place)
    (dlcmd.folder / "own").write_bytes(b"1")
    for words in (
        ["put", "own", f"{here}/"],
        ["rm", f"{here}/latest"],
        ["cp", f"{here}/latest", f"{here}/x"],
    ):
        assert "is a mirror of site1:" in dlcmd(*words, exit_code=EXIT_REFUSED).stderr
    assert "what the mirror" in dlcmd("tag", "rm", here, "mirror", exit_code=EXIT_USAGE).stderr
    own = f"{origin.name[-60:].strip('-')}-own"
    dlcmd("cp", "-r", here, f"dl://{own}")
    assert digest(dlcmd, f"dl://{own}") == digest(dlcmd, "tree")
    dlcmd("tag", "add", here, "v1")
    assert digest(dlcmd, f"{here}@v1") == digest(dlcmd, "tree")


def test_a_mirror_is_promoted_when_its_origin_is_away(dlcmd: Dlcmd, origin: Origin) -> None:
    here, promote = f"dl://{origin.name}", ("mirror", "--promote", "--json", f"dl://{origin.name}")
    (origin.folder / "large.bin").write_bytes(os.urandom(3_000_000))
    origin.sync()
    dlcmd(*promote, exit_code=EXIT_NOT_FOUND)
    (shown,) = dlcmd("mirror", "--once", "--json", origin.place).objects
    before, listed = digest(dlcmd, here), dlcmd("ls", "-lR", here).lines
    assert "is there, at generation" in dlcmd(*promote, exit_code=EXIT_USAGE).stderr
    origin.connect("unix:/nowhere")
    dlcmd(*promote, "-n")
    with closing(Dataset(origin.server.settings(), origin.name)) as data:
        began = promotion_record(data.record().dataset_id)
    with closing(PosixStore(dlcmd.home / "chunks")) as store:  # as after a crash
        store.create_record(began, b"")
    for words in (("fsck", here), ("rebuild", here)):
        refused = dlcmd.forked(words)
        assert refused.exit_code == EXIT_USAGE and "is being promoted" in refused.stderr, refused
    assert digest(dlcmd, here) == before
    (promoted,) = dlcmd(*promote).objects
    assert promoted["generation"] == shown["generation"]
    assert digest(dlcmd, here) == before and dlcmd("ls", "-lR", here).lines == listed
    settings = Settings.load(home=dlcmd.home, environment=dlcmd.environment())
    with closing(ServerClient(settings)) as client:
        record = client.dataset(origin.name)
        assert (
            record.generation > shown["generation"] and not client.mirrors() and not client.tags(origin.name)
        )
    (dlcmd.folder / "own").write_bytes(b"1")
    dlcmd("put", "own", f"{here}/")
    dlcmd("rm", f"{here}/class 0/0.bin")
    origin.connect(origin.server.tcp)
    assert "content of its own" in dlcmd("mirror", "--once", origin.place, exit_code=EXIT_USAGE).stderr
    dlcmd("purge", "--grace", "0s", here)
    assert "clean" in dlcmd("fsck", "--deep", here).text
    (origin.folder / "own").write_bytes(b"1")
    (origin.folder / "class 0/0.bin").unlink()
    assert digest(dlcmd, here) == digest(dlcmd, "tree")


class Sealed:
    """An encrypted dataset of `anna` at the remote `site1` of `dlcmd`, whose user has no key. `there`, `here`: how she
    reads both.
    """

    def __init__(self, dlcmd: Dlcmd, server: RunningServer, name: str) -> None:
        self.dlcmd, self.name = dlcmd, name
        self.place, self.mirror = f"dl://{name}", ("mirror", "--once", "--json", f"dl://site1:{name}")
        self.files = {"a/small": os.urandom(5_000), "a/large": os.urandom(3_000_000)}
        self.there, self.here = self.user("anna", {"DIESELFS_SERVER": server.unix}), self.user("anna")
        for path, content in self.files.items():
            (self.here.folder / path).parent.mkdir(exist_ok=True)
            (self.here.folder / path).write_bytes(content)
        self.there("put", "-r", "--encrypt", "a", f"{self.place}/")
        key_file = server.user(name[-50:].strip("-"), **{name: "read"})
        config = dlcmd.folder / ".config/dieselfs/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[remotes.site1]\nserver = "{server.tcp}"\nkey_file = "{key_file}"\n')

    def user(self, name: str, variables: dict[str, str] | None = None) -> Dlcmd:
        folder = self.dlcmd.folder / name
        folder.mkdir(exist_ok=True)
        return Dlcmd(self.dlcmd.home, folder, variables or {})

    def assert_is_here(self, reader: Dlcmd) -> None:
        for path, content in self.files.items():
            assert reader("cat", f"{self.place}/{path}").stdout == content


@pytest.fixture
def sealed(dlcmd: Dlcmd, server: RunningServer, dataset: str) -> Iterator[Sealed]:
    yield Sealed(dlcmd, server, dataset)
    dlcmd.forked(["rb", "-y", "--with-tags", dataset])


def test_an_encrypted_dataset_is_mirrored_and_promoted_without_its_key(sealed: Sealed) -> None:
    dlcmd, place = sealed.dlcmd, sealed.place
    of_others = {*(dlcmd.home / "chunks").rglob("*")}
    dlcmd(*sealed.mirror)
    assert "not wrapped for you" in dlcmd("ls", place, exit_code=EXIT_REFUSED).stderr
    sealed.assert_is_here(sealed.here)
    assert (
        "is a mirror of site1:" in sealed.here("put", "a/small", f"{place}/", exit_code=EXIT_REFUSED).stderr
    )
    mine = {*(dlcmd.home / "chunks").rglob("*")} - of_others
    stored = [path.read_bytes() for path in mine if path.is_file()]
    assert stored and not any(
        word in content for word in (b"small", sealed.files["a/small"][:32]) for content in stored
    )

    bert = sealed.user("bert")
    public = bert("key", "show", "--json").objects[0]["recipient"].split()
    (sealed.there.folder / "public").write_text(f"dieselfs-recipient bert {public[2]}\n")
    sealed.there("key", "add", place, "public")
    sealed.files["new"] = os.urandom(70_000)
    (sealed.there.folder / "new").write_bytes(sealed.files["new"])
    sealed.there("put", "new", f"{place}/")
    dlcmd(*sealed.mirror)
    sealed.assert_is_here(bert)

    dlcmd("mirror", "--promote", "--force", place)
    sealed.assert_is_here(bert)
    sealed.files["own"] = b"written here"
    (bert.folder / "own").write_bytes(sealed.files["own"])
    bert("put", "own", f"{place}/")
    dlcmd("purge", "--grace", "0s", place)
    assert "clean" in dlcmd("fsck", "--deep", place).text
    sealed.assert_is_here(sealed.here)

    sealed.there("erase", "-y", place)
    refused = dlcmd(*sealed.mirror, exit_code=EXIT_USAGE)
    assert "has content of its own" in refused.stderr
    sealed.assert_is_here(sealed.here)


def test_the_key_of_a_mirror_is_destroyed_with_that_of_its_origin(sealed: Sealed) -> None:
    sealed.dlcmd(*sealed.mirror)
    sealed.there("erase", "-y", sealed.place)
    sealed.assert_is_here(sealed.here)
    sealed.dlcmd(*sealed.mirror)
    assert "erase" in sealed.here("cat", f"{sealed.place}/a/small", exit_code=EXIT_REFUSED).stderr


def test_what_a_hostile_site_sends_is_refused(
    dlcmd: Dlcmd, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Dataset(origin.server.settings(), origin.name)) as data:
        record, snapshot = data.record(), data.snapshot
        content, payload = bytearray(snapshot.content), bytes(data.chunks.fetch_chunk(0))
    settings = Settings.load(home=dlcmd.home, environment=dlcmd.environment())
    name, chunk_id = origin.name, snapshot.chunk_id(0)
    with closing(ServerClient(settings)) as here:
        here.create_dataset(name, record.dataset_id)
        with pytest.raises(InvalidInput, match="is here already"):
            here.create_dataset(f"{name}2"[-60:].strip("-"), record.dataset_id)
        with pytest.raises(InvalidInput, match="is not a mirror"):
            here.put_mirror(name, content)
        here.keep_mirror(name, "site1:x", 1)
        with pytest.raises(InvalidInput, match="is a mirror of site1:x"):
            here.keep_mirror(name, "site2:x", 1)
        with monkeypatch.context() as patch:
            patch.setattr("dieselfs.rpc.dataset_calls.MIRROR_PART_BYTES", len(content) // 3)
            with pytest.raises(InvalidInput, match="is missing"):  # the chunks: the parts are one snapshot
                here.put_mirror(name, content)
        builder = ChunkBuilder()
        builder.add_file(b"f", b"1", 0o644, 0)
        with pytest.raises(AccessDenied, match="is a mirror"):
            here.put_chunk(name, bytes(chunk_id), builder.seal().encode(chunk_id, name, record.dataset_id, 1))
        other = SealedChunk((), b"", bytes(len(payload)))
        here.put_chunk(name, chunk_id, other.encode(chunk_id, name, record.dataset_id, 1))
        with pytest.raises(Damaged, match="has other bytes"):
            here.put_mirror(name, content)
        for at in (200, len(content) - 1):
            wrong = bytearray(content)
            wrong[at] ^= 1
            with pytest.raises(Damaged):
                here.put_mirror(name, wrong)
        with pytest.raises(NotFound):
            here.stat(name, b"latest")  # nothing is shown yet
