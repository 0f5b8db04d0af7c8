"""Settings on a command line, and from there to the process that is started."""

from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dieselfs.limits import GIB
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import CacheOptions, Place

ALL = CacheOptions(
    "train", 8, "node-3", 0, "10.0.0.3", "/run/secret",
    server="tcp://a:1", key_file="/key", home="/home", generation=7, memory_bytes=GIB, policy="oneshot",
    warm_rate_bytes=10**7,
)  # fmt: skip


@click.command()
@click.argument("text")
@settings_options(Place.CACHE | Place.VERB | Place.DAEMON)
def command(text: str, given: dict[str, Any]) -> None:
    """Print what was given."""
    click.echo(f"{text} {CacheOptions(**given)!r}")


@click.command()
@settings_options(Place.MOUNT | Place.SERVER)
def other(given: dict[str, Any]) -> None:
    """Print what was given."""
    click.echo(sorted(given.items()))


@pytest.mark.parametrize(
    "options",
    [CacheOptions(), CacheOptions(job="auto"), ALL, replace(ALL, job_rank=None), replace(ALL, job_nodes=0)],
)
def test_options_survive_the_way_through_a_command_line(options: CacheOptions) -> None:
    ended = CliRunner().invoke(command, ["text", *options.arguments()])
    assert ended.output == f"text {options!r}\n"


def test_people_write_units() -> None:
    words = ["x", "--memory", "1.5G", "--warm-rate", "10MB/s"]
    assert (
        CliRunner().invoke(command, words).output
        == f"x {CacheOptions(memory_bytes=3 << 29, warm_rate_bytes=10**7)!r}\n"
    )


def test_only_what_was_given_is_passed_on() -> None:
    assert CliRunner().invoke(other, []).output == "[]\n"
    words = ["--noexec", "--uid", "0", "--timeout", "500ms", "--listen", "unix:/a", "--listen", "tcp://b:1"]
    assert CliRunner().invoke(other, words).output == (
        "[('listen', ('unix:/a', 'tcp://b:1')), ('noexec', True), ('timeout_s', 0.5), ('uid', 0)]\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--job-nodes", "-1"],
            "Invalid value for '--job-nodes': '-1' is not a whole number: write for example 8",
        ),
        (["--job-rank", "x"], "'--job-rank': 'x' is not a whole number"),
        (["--memory", "lots"], "'--memory': 'lots' is not a size: write for example 512MiB"),
        (["--memory", "1MiB"], "'--memory': 1MiB is too small: it must be at least 8MiB"),
        (["--policy", "never"], "'--policy': 'never' is not one of on-demand, oneshot"),
        (["--warm-rate", "fast"], "'--warm-rate': 'fast' is not a rate: write for example 10MiB/s"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_name_of_the_option(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(command, ["text", *arguments])
    assert ended.exit_code == 2 and said in ended.output


def test_help_has_the_default_and_where_else_it_can_be_given() -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"], terminal_width=200).output.split())
    assert (
        "--job-nodes N Number of nodes of the job; the first fetch waits for them. "
        "[from the launcher, DIESELFS_JOB_NODES" in text
    )
    assert "[1.0 GiB, or what the system allows]" in text
    text = CliRunner().invoke(other, ["--help"]).output
    assert "--etcd-user" in text and "DIESELFS_ETCD" not in text, "servers take nothing from the environment"
