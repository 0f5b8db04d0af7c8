"""dlcmd which: the files of a step, of all readers or of one, and those at positions."""

import os

import dieselfs
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from tests.support.dlcmd import Dlcmd


def test_what_was_read_when(dlcmd: Dlcmd, dataset: str) -> None:
    root = dlcmd.folder / "many"
    root.mkdir()
    for number in range(50):
        (root / str(number)).write_bytes(b"x")
    dlcmd("put", "-rq", "many/", f"dl://{dataset}/")
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as data:
        plan = data.plan(1, 2)
        skipping = plan.with_epoch(2, [range(8, 24)])
        whole = list(map(os.fspath, plan.share().paths))
        left = list(map(os.fspath, skipping.share().paths))
        ranks = [plan.share(rank, 3, 8).positions_of(4) for rank in range(3)]
        cursor = str(plan.cursor(32))
    which = ("which", f"dl://{dataset}", "--seed", "1", "--epoch", "2")
    assert dlcmd(*which, "--step", "4", "--batch", "8").lines == whole[32:40]
    assert dlcmd(*which, "--step", "6", "--batch", "8").lines == whole[48:]  # the last one is short
    for rank, positions in enumerate(ranks):
        ran = dlcmd(*which, "--step", "4", "--batch", "8", "--rank", str(rank), "--world", "3", "--json")
        assert [one["position"] for one in ran.objects] == list(positions)
        assert [one["path"] for one in ran.objects] == [whole[position] for position in positions]
    assert dlcmd(*which, "--position", "17").lines == whole[17:18]
    assert dlcmd(*which, "--position", "17-20").lines == whole[17:21]
    assert dlcmd(*which, "--step", "1", "--batch", "8", "--skip", "2:1-2").lines == left[8:16] == whole[24:32]
    told = dlcmd("which", dataset, "--cursor", cursor, "--step", "4", "--batch", "8", "--json")
    assert [one["path"] for one in told.objects] == whole[32:40] and told.summary["cursor"] == cursor
    for nothing in (("--step", "7", "--batch", "8"), ("--position", "49-50"), ("--position", "5-4")):
        dlcmd(*which, *nothing, exit_code=EXIT_USAGE)


def test_what_is_not_said(dlcmd: Dlcmd, pets: str) -> None:
    for missing in (
        (),
        ("--step", "1"),
        ("--step", "1", "--batch", "4", "--position", "1"),
        ("--step", "0", "--batch", "4", "--rank", "1"),
        ("--step", "0", "--batch", "4", "--rank", "4", "--world", "4"),
        ("--step", "-1", "--batch", "4"),
        ("--position", "0", "--rank", "0", "--world", "1"),
        ("--position", "a"),
        ("--cursor", "order1.nothing", "--position", "0"),
    ):
        dlcmd("which", pets, *missing, exit_code=EXIT_USAGE)
    dlcmd("which", "dl://none", "--position", "0", exit_code=EXIT_NOT_FOUND)
