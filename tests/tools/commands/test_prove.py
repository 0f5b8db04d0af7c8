"""dlcmd prove: what samplers and mounts have read is stated, checked without a server, and asked for files."""

import os
import pickle  # noqa: TID251  # as a program keeps the state of a sampler
from pathlib import Path

import pytest

import dieselfs
from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from dieselfs.shuffle.proof import cursors_in
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset, OpportunisticSampler
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dlcmd import Dlcmd, wait_until

FILES, BATCH = 40, 8


@pytest.fixture
def many(dlcmd: Dlcmd, dataset: str) -> str:
    root = dlcmd.folder / "many/train"
    root.mkdir(parents=True)
    for number in range(FILES):
        (root / f"{number:02}").write_bytes(b"x")
    dlcmd("put", "-rq", "many/", f"dl://{dataset}/")
    dlcmd("snapshot", "save", dataset, "./the.snapshot")
    return dataset


def test_what_a_sampler_has_read_is_proved(dlcmd: Dlcmd, many: str) -> None:
    """The state is in a checkpoint of bytes; the proof is checked where no server is."""
    with FileDataset(f"dl://{many}/train", loader=bytes, server=EMBEDDED, home=dlcmd.home) as dataset:
        sampler = ChunkShuffleBatchSampler(dataset, BATCH, seed=4, rank=0, world=1)
        sampler.set_epoch(2)
        steps = [[dataset.path(index) for index in step] for step in sampler]
        sampler.set_epoch(1)
        sampler.set_epoch(2)
        batches = iter(sampler)
        for _ in range(3):
            next(batches)
            sampler.advance()
        state = sampler.state_dict()
    (dlcmd.folder / "checkpoint").write_bytes(bytes(100) + pickle.dumps({"loss": 0.5, "sampler": state}))
    words = ("--since", "1", "--batch", str(BATCH), "-o", "run.proof")
    told = dlcmd("prove", f"dl://{many}/train", "checkpoint", *words, "--json").summary
    assert told["orders"] == 2 and told["others"] == 0
    away = Dlcmd(dlcmd.folder / "nothing", dlcmd.folder, {"DIESELFS_SERVER": "tcp://127.0.0.1:1"})
    check = ("prove", "--check", "run.proof")
    assert "(compare the key" in away(*check).lines[-1]
    asked = (*check, "--signer", told["public_key"], "--snapshot", "./the.snapshot", "--json")
    read, unread = steps[2][5], steps[4][0]
    answers = away(*asked, "--file", read, "--file", unread, "--file", "train/none").objects
    found = [(one["path"], one["epoch"], one.get("step")) for one in answers if one["type"] == "reading"]
    assert [one for one in found if one[1] == 2] == [(read, 2, 2)]
    assert sorted(one[:2] for one in found) == sorted([(read, 1), (read, 2), (unread, 1)])
    assert [(one["path"], one["is_there"]) for one in answers if one["type"] == "never"] == [
        ("train/none", False)
    ]

    dlcmd("prove", f"dl://{many}/train", "checkpoint", "-o", "short.proof")
    shown = away("prove", "--check", "short.proof", "--snapshot", "./the.snapshot", "--file", unread).lines
    assert f"{unread}: never, in what the proof states" in shown
    proof = dlcmd.folder / "run.proof"
    proof.write_text(proof.read_text().replace("batch 8", "batch 9"))
    assert "a signature is wrong" in away(*check, exit_code=EXIT_DAMAGED).stderr
    wrong = away("prove", "--check", "short.proof", "--signer", "0" * 64, exit_code=EXIT_REFUSED)
    assert "signed by" in wrong.stderr
    (dlcmd.folder / "many/train/new").touch()
    dlcmd("put", "-rq", "many/", f"dl://{many}/")
    dlcmd("snapshot", "save", many, "./new.snapshot")
    later = ("prove", "--check", "short.proof", "--snapshot", "./new.snapshot")
    assert "is not generation" in away(*later, exit_code=EXIT_USAGE).stderr
    gone = dlcmd("prove", f"dl://{many}/train", "checkpoint", exit_code=EXIT_USAGE)
    assert "of another folder, generation or choice of files" in gone.stderr


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")
def test_what_a_mount_has_read_is_proved(dlcmd: Dlcmd, many: str) -> None:
    place = dlcmd.folder / "mnt"
    place.mkdir()
    control.mount(many, place, MountOptions(home=str(dlcmd.home), view="fuse"))
    try:
        listed = (place / ".dieselfs/shuffle/seed=1,epoch=0,folder=train").read_text().splitlines()
        for name in listed:
            (place / name).read_bytes()
        wait_until(lambda: any(one.position for one in cursors_in((place / ".dieselfs/cursor").read_bytes())))
        dlcmd("prove", f"dl://{many}/train", place / ".dieselfs/cursor", "-o", "run.proof")
    finally:
        control.unmount(place)
    words = ("--snapshot", "./the.snapshot", "--file", listed[0])
    assert f"{listed[0]}: seed 1, epoch 0, position 0" in dlcmd("prove", "--check", "run.proof", *words).lines


def opportunistic_steps(dlcmd: Dlcmd, many: str) -> list[list[str]]:
    """The steps of an epoch; a file `served` has the state after two of them."""
    with FileDataset(f"dl://{many}/train", loader=bytes, server=EMBEDDED, home=dlcmd.home) as dataset:
        sampler = OpportunisticSampler(dataset, BATCH, rank=0, world=1)
        steps = [[dataset.path(index) for index in step] for step in sampler]
        sampler.load_state_dict(sampler.state_dict())
        batches = iter(sampler)
        for _ in range(2):
            next(batches)
            sampler.advance()
        (dlcmd.folder / "served").write_bytes(pickle.dumps(sampler.state_dict()))
    return steps


def test_an_opportunistic_order_is_proved_with_its_log(dlcmd: Dlcmd, many: str) -> None:
    steps = opportunistic_steps(dlcmd, many)
    dlcmd("prove", f"dl://{many}/train", "served", "--batch", str(BATCH), "-o", "run.proof")
    check = ("prove", "--check", "run.proof")
    (read,) = dlcmd(*check, "--json").objects
    assert (read["positions"], len(read["log"])) == (2 * BATCH, 64)
    asked = (*check, "--snapshot", "./the.snapshot", "--file", steps[1][3], "--file", steps[2][0])
    assert (
        f"give --log FILE, a state of the sampler of that epoch, whose log has the SHA-256 {read['log']}"
        in (dlcmd(*asked, exit_code=EXIT_USAGE).stderr)
    )
    answers = dlcmd(*asked, "--log", "served", "--json").objects[1:]
    assert [(one["type"], one["path"]) for one in answers] == [
        ("reading", steps[1][3]),
        ("never", steps[2][0]),
    ]
    assert (answers[0]["position"], answers[0]["step"]) == (BATCH + 3, 1)


def test_the_proof_of_an_encrypted_dataset_has_no_names(dlcmd: Dlcmd) -> None:
    root = dlcmd.folder / "scans/ward-b"
    root.mkdir(parents=True)
    for number in range(FILES):
        (root / f"patient-{number:02}").write_bytes(b"x")
    dlcmd("put", "-rq", "--encrypt", "scans/", "dl://scans/")
    shuffle = ("shuffle", "dl://scans/ward-b", "--seed", "4", "--epoch", "1")
    order = dlcmd(*shuffle).lines
    (dlcmd.folder / "log").write_text(dlcmd(*shuffle, "--start", str(FILES - 1), "--json").summary["cursor"])
    dlcmd("prove", "dl://scans/ward-b", "log", "--batch", str(BATCH), "-o", "run.proof")
    dlcmd("snapshot", "save", "scans", "./signed.snapshot")
    dlcmd("snapshot", "save", "--names", "scans", "./scans.names")
    for name in ("run.proof", "signed.snapshot"):
        content = (dlcmd.folder / name).read_bytes()
        assert b"ward" not in content and b"patient" not in content
    away = Dlcmd(dlcmd.folder / "nothing", dlcmd.folder, {"DIESELFS_SERVER": "tcp://127.0.0.1:1"})
    check = ("prove", "--check", "run.proof", "--snapshot")
    told = away(*check, "./signed.snapshot", "--json").summary
    assert "folder" not in told and len(told["names_digest"]) == 64
    asked = ("--file", order[9], "--file", order[-1])
    refused = away(*check, "./signed.snapshot", *asked, exit_code=EXIT_USAGE)
    assert "scans is encrypted: --file needs the names" in refused.stderr
    lines = away(*check, "./scans.names", *asked).lines
    assert f"{order[9]}: seed 4, epoch 1, position 9, step 1" in lines
    assert f"{order[-1]}: never, in what the proof states" in lines
    dlcmd("put", "-q", "log", "dl://plain/")
    plain = dlcmd("snapshot", "save", "--names", "plain", "./plain.names", exit_code=EXIT_USAGE)
    assert "is not encrypted" in plain.stderr
    folder = dlcmd("snapshot", "save", "--names", "scans", ".", "--dry-run", exit_code=EXIT_USAGE)
    assert ". is a folder" in folder.stderr


def test_what_cannot_be_proved(dlcmd: Dlcmd, many: str) -> None:
    with dieselfs.connect(many, server=EMBEDDED, home=dlcmd.home) as data:
        Path(dlcmd.folder, "start").write_text(str(data.plan(1, 2).cursor(0)))
    (dlcmd.folder / "text").write_text("no cursor, and no proof")
    opportunistic_steps(dlcmd, many)
    served = (dlcmd.folder / "served").read_bytes()
    (dlcmd.folder / "damaged").write_bytes(served.replace(b"\n0 0\n", b"\n"))
    (dlcmd.folder / "cursors").write_text("\n".join(map(str, cursors_in(served))))
    for words, code, message in (
        ([f"dl://{many}/train", "served", "cursors"], EXIT_USAGE, "is in a file without its log"),
        ([many, "text"], EXIT_USAGE, "there is no cursor"),
        ([many, "start"], EXIT_USAGE, "nothing was read"),
        ([f"dl://{many}/train", "damaged"], EXIT_USAGE, "damaged: the log of an order was truncated"),
        ([f"dl://{many}/train", "served", "--since", "0"], EXIT_USAGE, "--since is not for opportunistic"),
        (["--check", "text", "--log", "served"], EXIT_USAGE, "need --snapshot"),
        ([many, "none"], EXIT_NOT_FOUND, "none: No such file"),
        ([many], EXIT_USAGE, "are missing"),
        ([], EXIT_USAGE, "are missing"),
        ([many, "start", "--signer", "0"], EXIT_USAGE, "need --check"),
        (["--check", "text"], EXIT_DAMAGED, "not a proof"),
        (["--check", "none"], EXIT_NOT_FOUND, "none: No such file"),
        (["--check", "text", "--file", "f"], EXIT_USAGE, "need --snapshot"),
        (["--check", "text", many], EXIT_USAGE, "takes the proof alone"),
    ):
        assert message in dlcmd("prove", *words, exit_code=code).stderr
