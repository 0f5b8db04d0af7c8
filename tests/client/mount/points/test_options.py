from dataclasses import fields, replace

import pytest

from dieselfs.errors import InvalidInput, MountError
from dieselfs.limits import GIB
from dieselfs.names import Location
from dieselfs.settings.table import Place, given_at
from dieselfs_client.mount.points.options import MountOptions, check_following, format_options, parse_options
from dieselfs_client.mount.points.view_choice import Facts

ROOT = Facts(True, False, (6, 12))


def test_options_of_dieselfs_and_of_mount_stand_side_by_side() -> None:
    text = "rw,noauto,_netdev,x-systemd.automount,server=tcp://a:1,memory=2GiB,allow_other,uid=1000,timeout=5"
    assert parse_options(text, MountOptions()) == MountOptions(
        server="tcp://a:1", memory_bytes=2 * GIB, allow_other=True, uid=1000, timeout_s=5.0
    )


def test_later_options_win_and_others_stay() -> None:
    base = MountOptions(server="tcp://a:1", generation=3)
    assert parse_options("generation=4", base) == MountOptions(server="tcp://a:1", generation=4)


@pytest.mark.parametrize(
    "text",
    [
        "colour=red",
        "allow_other=1",
        "memory",
        "uid=me",
        "memory=1MiB",
        "timeout=0",
        "timeout=inf",
        "driver=bus",
    ],
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_options(text, MountOptions())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job=oj,job_nodes=x", "mount option job_nodes=x: 'x' is not a whole number: write for example 8"),
        ("uid=-1", "mount option uid=-1: '-1' is not a whole number: write for example 8"),
        (
            "timeout=soon",
            "mount option timeout=soon: 'soon' is not a duration: write for example 500ms, 30s, 15m, 12h or 30d",
        ),
    ],
)
def test_what_is_no_number_is_said_with_its_option(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{said}$"):
        parse_options(text, MountOptions())


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1TiB", 1024 * GIB), ("64GB", 64 * 10**9), ("1.5G", 3 * GIB // 2), ("64g", 64 * GIB)],
)
def test_sizes_are_those_of_every_other_place(text: str, size_bytes: int) -> None:
    assert parse_options(f"memory={text}", MountOptions()) == MountOptions(memory_bytes=size_bytes)


def test_times_have_units() -> None:
    assert parse_options("timeout=500ms", MountOptions()).timeout_s == 0.5
    assert parse_options("timeout=2m", MountOptions()).timeout_s == 120


def test_every_option_has_a_field() -> None:
    assert {row.field for row in given_at(Place.OPTION)} == {field.name for field in fields(MountOptions)}


@pytest.mark.parametrize(
    ("options", "dataset", "is_kept", "facts", "said"),
    [
        (
            MountOptions(follow_s=1, generation=3),
            Location("x"),
            False,
            ROOT,
            "--generation .*leave out --follow",
        ),
        (MountOptions(follow_s=1, job="j"), Location("x"), False, ROOT, "nodes of a job"),
        (MountOptions(follow_s=1), Location("x", tag="v1"), False, ROOT, "a tag has one"),
        (MountOptions(follow_s=1), None, False, ROOT, "a saved snapshot"),
        (MountOptions(follow_s=1), Location("x"), True, ROOT, "in the foreground"),
        (MountOptions(follow_s=1), Location("x"), False, Facts(False, False, (6, 18)), "needs root"),
        (MountOptions(follow_s=1), Location("x"), False, Facts(True, False, (6, 4)), "Linux 6.5"),
    ],
)
def test_a_mount_that_cannot_follow_says_why(
    options: MountOptions, dataset: Location | None, is_kept: bool, facts: Facts, said: str
) -> None:
    with pytest.raises((InvalidInput, MountError), match=said):
        check_following(options, dataset, is_kept, facts)
    check_following(replace(options, follow_s=0), dataset, is_kept, facts)


def test_sloppy_passes_over_what_is_unknown_only() -> None:
    assert parse_options("colour=red,noexec", MountOptions(), is_sloppy=True) == MountOptions(noexec=True)
    with pytest.raises(InvalidInput):
        parse_options("uid=me", MountOptions(), is_sloppy=True)


def test_options_survive_the_way_to_another_process() -> None:
    options = MountOptions(
        server="unix:/run/d,1.sock", key_file="/k", home="/h", generation=9, memory_bytes=3 * GIB,
        allow_other=True, allow_plans=True, noexec=True, uid=0, gid=7, timeout_s=2.5, log_file="/var/log/a,b.log",
    )  # fmt: skip
    assert parse_options(format_options(options), MountOptions()) == options
    assert parse_options(format_options(MountOptions()), MountOptions()) == MountOptions()


def test_relative_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert MountOptions(key_file="key", log_file="/a/log").absolute() == MountOptions(
        key_file=f"{tmp_path}/key", log_file="/a/log"
    )
