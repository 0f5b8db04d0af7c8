"""dlcmd export: an image that mounts without dieselfs, of a dataset, a folder or a tag; archives and LMDB."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.dlcmd import Dlcmd
from tests.support.erofs import mounted_image


def test_a_dataset_becomes_an_image(dlcmd: Dlcmd, pets: str) -> None:
    image = dlcmd.folder / "pets.erofs"
    would = dlcmd("export", "-n", f"dl://{pets}", "pets.erofs").text
    assert would.startswith(f"would write dl://{pets}/ as pets.erofs (8 entries, ") and not image.exists()
    summary = dlcmd("export", "--json", f"dl://{pets}", "pets.erofs").summary
    assert summary["entries"] == 8 and summary["image_bytes"] == image.stat().st_size
    with mounted_image(image, dlcmd.folder / "mounted") as mounted:
        assert (mounted / "train/more/dog.bin").read_bytes() == b"x" * 4096
        assert (mounted / "latest").read_bytes() == b"xxxxx"


def test_a_folder_of_a_tag(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("tag", "add", pets, "v1")
    dlcmd("rm", "-r", f"dl://{pets}/train")
    dlcmd("export", f"{pets}@v1/train", "train.erofs", exit_code=EXIT_USAGE)  # a folder is a location
    dlcmd("export", f"dl://{pets}@v1/train", "train.erofs")
    with mounted_image(dlcmd.folder / "train.erofs", dlcmd.folder / "mounted") as mounted:
        assert sorted(path.name for path in mounted.iterdir()) == ["cat.txt", "more"]


def test_requests_that_are_refused(dlcmd: Dlcmd, pets: str) -> None:
    ran = dlcmd("export", f"dl://{pets}", "pets.img", exit_code=EXIT_USAGE)
    assert ran.stderr.startswith(
        "dlcmd: pets.img: the suffix is not .erofs, .tar, .lmdb; name the format: --format "
    )
    ran = dlcmd("export", f"dl://{pets}/none", "none.erofs", exit_code=EXIT_USAGE)
    assert "not a folder, but a file" in ran.stderr
    dlcmd("export", f"dl://{pets}/missing", "missing.erofs", exit_code=EXIT_NOT_FOUND)
    (dlcmd.folder / "pets.erofs").write_bytes(b"")
    ran = dlcmd("export", f"dl://{pets}", "pets.erofs", exit_code=EXIT_USAGE)
    assert ran.stderr == "dlcmd: pets.erofs exists; give -f to replace it\n"
    dlcmd("export", "-f", f"dl://{pets}", "pets.erofs")


def make_tree(folder: Path) -> Path:
    """Files of all sizes, whose order in the dataset is not that of their names."""
    tree = folder / "tree"
    for number in (5, 1, 3, 0, 2, 4):
        for suffix in ("jpg", "cls"):
            place = tree / f"class-{number % 2}" / f"{number:03}.{suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(os.urandom(number * 1000))
            os.utime(place, ns=(0, 1_600_000_000_123_456_789))
    (tree / "large.bin").write_bytes(os.urandom(5 << 20))
    return tree


def contents(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_a_tar_archive_that_tar_unpacks(dlcmd: Dlcmd, dataset: str) -> None:
    tree = make_tree(dlcmd.folder)
    (tree / "link").symlink_to("large.bin")
    (tree / os.fsdecode(b"\xff" + b"x" * 200)).write_bytes(b"odd")
    (tree / "empty").mkdir()
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (1_600_000_000, 1_600_000_000), follow_symlinks=False)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/in/")
    dlcmd("export", f"dl://{dataset}/in", "a.tar")
    with tarfile.open(dlcmd.folder / "a.tar") as archive:
        assert {(member.uid, member.uname) for member in archive} == {(0, "")}
    (dlcmd.folder / "back").mkdir()
    subprocess.run(["tar", "xpf", "a.tar", "-C", "back"], cwd=dlcmd.folder, check=True)
    os.utime(dlcmd.folder / "back", (1_600_000_000, 1_600_000_000))
    (dlcmd.folder / "back").chmod(tree.stat().st_mode)
    assert compare_trees(os.fsencode(tree), os.fsencode(dlcmd.folder / "back")).shown == []

    whole = (dlcmd.folder / "a.tar").read_bytes()
    assert dlcmd("export", f"dl://{dataset}/in", "-").stdout == whole
    dlcmd("import", "a.tar", f"dl://{dataset}/again")
    dlcmd("export", "--chunk-size", "1", f"dl://{dataset}/again", "b.tar", exit_code=EXIT_USAGE)
    dlcmd("export", f"dl://{dataset}/again", "b.tar")
    assert (dlcmd.folder / "b.tar").read_bytes() == whole, "equal datasets give equal archives"


def test_webdataset_shards(dlcmd: Dlcmd, dataset: str) -> None:
    tree = make_tree(dlcmd.folder)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    ran = dlcmd("export", "--format", "webdataset", "--shard-size", "8K", f"dl://{dataset}", "shards")
    assert f"wrote dl://{dataset}/ as webdataset to shards (15 entries, 5.0 MiB) in " in ran.text
    shards = sorted((dlcmd.folder / "shards").iterdir())
    assert [path.name for path in shards] == [f"shard-{number:06}.tar" for number in range(len(shards))]
    found: dict[str, bytes] = {}
    for path in shards:
        with tarfile.open(path) as archive:
            keys = [member.name.rpartition(".")[0] for member in archive]
            assert not {name.rpartition(".")[0] for name in found} & set(keys), "a sample is in one shard"
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    assert len(shards) > 2 and found == contents(tree)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_its_shards(dlcmd: Dlcmd, dataset: str) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the extra 'bench' is not installed")
    tree = make_tree(dlcmd.folder)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    dlcmd("export", "--format", "webdataset", f"dl://{dataset}", "shards")
    # It leaves its file open, which warns.
    samples = list(webdataset.WebDataset(str(dlcmd.folder / "shards/shard-000000.tar"), shardshuffle=False))
    files = {
        f"{one['__key__']}.{suffix}": one[suffix]
        for one in samples
        for suffix in ("jpg", "cls", "bin")
        if suffix in one
    }
    assert files == contents(tree) and len(samples) == 7


def test_an_lmdb_environment(dlcmd: Dlcmd, dataset: str) -> None:
    lmdb = pytest.importorskip("lmdb", reason="the extra 'import' is not installed")
    tree = make_tree(dlcmd.folder)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    dlcmd("export", f"dl://{dataset}", "a.lmdb")
    with lmdb.open(str(dlcmd.folder / "a.lmdb"), readonly=True) as environment, environment.begin() as read:
        assert {key.decode(): value for key, value in read.cursor()} == contents(tree)
    dlcmd("export", f"dl://{dataset}", "b.lmdb")
    files = [(dlcmd.folder / name / "data.mdb").read_bytes() for name in ("a.lmdb", "b.lmdb")]
    assert files[0] == files[1]
    dlcmd("import", "a.lmdb", f"dl://{dataset}-back")
    dlcmd("get", "-r", f"dl://{dataset}-back", "back")
    assert contents(dlcmd.folder / "back") == contents(tree)


def test_a_folder(dlcmd: Dlcmd, dataset: str) -> None:
    tree = make_tree(dlcmd.folder)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    assert "would write" in dlcmd("export", "-n", "--format", "folder", f"dl://{dataset}", "back").text
    dlcmd("export", "--format", "folder", f"dl://{dataset}", "back")
    assert compare_trees(os.fsencode(tree), os.fsencode(dlcmd.folder / "back")).shown == []


def test_what_a_format_does_not_have_is_named(dlcmd: Dlcmd, dataset: str) -> None:
    tree = dlcmd.folder / "tree"
    tree.mkdir()
    (tree / "a.jpg").write_bytes(b"a")
    (tree / "README").write_bytes(b"b")
    (tree / "link.jpg").symlink_to("a.jpg")
    (tree / ("x" * 250)).mkdir()
    (tree / ("x" * 250) / ("y" * 250)).mkdir()
    (tree / ("x" * 250) / ("y" * 250) / ("z" * 250 + ".jpg")).write_bytes(b"c")
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/")
    ran = dlcmd("export", "--format", "webdataset", f"dl://{dataset}", "shards", exit_code=EXIT_PARTIAL)
    assert "dlcmd: README: WebDataset ignores names without a suffix\n" in ran.stderr
    assert "dlcmd: link.jpg: a link; WebDataset has files only\n" in ran.stderr
    pytest.importorskip("lmdb", reason="the extra 'import' is not installed")
    ran = dlcmd("export", f"dl://{dataset}", "a.lmdb", exit_code=EXIT_PARTIAL)
    assert "keys of LMDB have at most 511 bytes, this path 756" in ran.stderr


def test_targets_that_are_refused(dlcmd: Dlcmd, pets: str) -> None:
    (dlcmd.folder / "a.tar").write_bytes(b"mine")
    (dlcmd.folder / "a.lmdb").mkdir()
    for words, message in [
        (["a.tar"], "a.tar exists; give -f to replace it"),
        (["-f", "a.lmdb"], "a.lmdb exists; remove it, or name a new folder"),
        (["--format", "lmdb", "-"], "standard output takes a tar archive"),
        (["--json", "-"], "standard output takes a tar archive"),
    ]:
        assert message in dlcmd("export", f"dl://{pets}", *words, exit_code=EXIT_USAGE).stderr
    assert (dlcmd.folder / "a.tar").read_bytes() == b"mine"
    dlcmd("export", "-f", f"dl://{pets}", "a.tar")
    assert tarfile.is_tarfile(io.BytesIO((dlcmd.folder / "a.tar").read_bytes()))
    assert "would write" in dlcmd("export", "-n", f"dl://{pets}", "b.tar").text
    ran = dlcmd("export", f"dl://{pets}", "none/b.tar", exit_code=EXIT_NOT_FOUND)
    assert ran.stderr == "dlcmd: none/b.tar: No such file or directory: make its folder first\n"
    assert sorted(path.name for path in dlcmd.folder.iterdir()) == ["a.lmdb", "a.tar", "pets"]
