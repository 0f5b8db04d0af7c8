"""The options of a job: on a command line, and from there to the process that is started."""

from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dieselfs_client.job_options import NO_JOB, JobOptions, job_options

ALL = JobOptions("train", 8, "node-3", 0, "10.0.0.3", "/run/secret")


@click.command()
@click.argument("text")
@job_options
def command(text: str, job: JobOptions) -> None:
    """Say what was given."""
    click.echo(f"{text} {job!r}")


@pytest.mark.parametrize(
    "options", [NO_JOB, JobOptions(job="auto"), ALL, replace(ALL, job_rank=None), replace(ALL, job_nodes=0)]
)
def test_options_survive_the_way_through_a_command_line(options: JobOptions) -> None:
    ended = CliRunner().invoke(command, ["text", *options.arguments()])
    assert ended.output == f"text {options!r}\n"


@pytest.mark.parametrize("arguments", [["--job-nodes", "-1"], ["--job-rank", "x"], ["--job-rank", "-1"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, ["text", *arguments]).exit_code == 2


def test_the_secret_is_found_from_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert replace(ALL, job_secret="secret").absolute() == replace(ALL, job_secret=f"{tmp_path}/secret")
    assert NO_JOB.absolute() == NO_JOB
