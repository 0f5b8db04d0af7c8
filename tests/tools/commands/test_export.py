"""dlcmd export: an image that mounts without dieselfs, of a dataset, a folder or a tag."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
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
    assert ran.stderr == "dlcmd: pets.img: only EROFS images can be written; name the file pets.img.erofs\n"
    ran = dlcmd("export", f"dl://{pets}/none", "none.erofs", exit_code=EXIT_USAGE)
    assert "not a folder, but a file" in ran.stderr
    dlcmd("export", f"dl://{pets}/missing", "missing.erofs", exit_code=EXIT_NOT_FOUND)
    (dlcmd.folder / "pets.erofs").write_bytes(b"")
    ran = dlcmd("export", f"dl://{pets}", "pets.erofs", exit_code=EXIT_USAGE)
    assert ran.stderr == "dlcmd: pets.erofs exists; give -f to replace it\n"
    dlcmd("export", "-f", f"dl://{pets}", "pets.erofs")
