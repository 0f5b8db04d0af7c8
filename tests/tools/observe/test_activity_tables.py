"""The tables of `dlcmd top`."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from dieselfs.telemetry.activity import Activity, ServerActivity
from dieselfs_tools.observe.activity_tables import tables
from tests.dieselfs.telemetry.test_diagnosis import SERVER, SLOW


def shown(*seen: Activity | ServerActivity, width: int = 200) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(tables(seen))
    return console.export_text()


def test_a_mount_and_a_server_have_a_row_each() -> None:
    text = shown(replace(SLOW, about={"mountpoint": "/mnt/[bold]x"}), SERVER)
    assert "/mnt/[bold]x" in text  # not taken for markup
    for word in (
        "95.4 MiB",
        "2.00",
        "50.0%",
        "server 1.50",
        "10%",
        "18 s",
        "20.0 ms",
        "server 2",
    ):
        assert word in text


def test_a_node_of_a_job_is_named_and_its_slowest_peer() -> None:
    about = {"mountpoint": "/mnt/x", "node": "node-7"}
    text = shown(replace(SLOW, about=about, slowest_peer={"node": "node-9", "mean_s": 0.25}))
    assert "node-7: /mnt/x" in text and "node-9 250.0 ms" in text


def test_a_cache_has_its_dataset_and_no_server_no_table() -> None:
    text = shown(replace(SLOW, about={"dataset": "pets"}, plans=(), hit_share=None, spent={}))
    assert "dl://pets (cache)" in text and "clients" not in text


def test_a_terminal_of_80_columns_has_room() -> None:
    mount = replace(SLOW, about={"mountpoint": "/mnt/imagenet"}, reads=12345.0, fetched_bytes=1.5e9)
    text = shown(mount, SERVER, width=80)
    assert "…" not in text
    for words in ("fetched/s", "reads/s", "waiting", "in time", "12,345", "1.4 GiB", "clients"):
        assert words in text


def test_without_daemons_there_is_one_line() -> None:
    assert shown().strip() == "no daemon of yours runs on this machine"
