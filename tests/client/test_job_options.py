"""The options of a job: on a command line, and from there to the process that is started."""

from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dieselfs.cache.job import JobSettings
from dieselfs.errors import InvalidInput
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
    assert replace(ALL, job_secret="~/secret").absolute() == replace(ALL, job_secret="~/secret")


CONFIGURED = JobSettings("auto", "~/secret", 0, 4, "node-9", "10.0.0.9")
SLURM = {"SLURM_JOB_ID": "7"}


def test_what_is_not_said_is_taken_from_the_configuration() -> None:
    all_of_it = JobOptions("auto", 4, "node-9", None, "10.0.0.9", "~/secret")
    assert NO_JOB.configured(CONFIGURED, SLURM) == all_of_it
    assert JobOptions("train").configured(CONFIGURED, {}) == replace(all_of_it, job="train")
    assert ALL.configured(CONFIGURED, SLURM) == ALL
    assert ALL.configured(JobSettings(), {}) == ALL


def test_without_a_launcher_auto_is_no_job_unless_it_is_asked_for() -> None:
    assert NO_JOB.configured(CONFIGURED, {}) == NO_JOB
    assert JobOptions("auto").configured(CONFIGURED, {}).job == "auto"
    assert JobOptions("").configured(CONFIGURED, SLURM) == NO_JOB


@pytest.mark.parametrize("part", [{"job_nodes": 3}, {"job_rank": 0}, {"job_secret": "file"}])
def test_nothing_can_be_said_of_no_job(part: dict[str, object]) -> None:
    said = replace(NO_JOB, **part)  # type: ignore[arg-type]  # each is of the type of its field
    (name,) = part
    with pytest.raises(InvalidInput, match=f"--{name.replace('_', '-')} belongs to a job: give --job NAME"):
        said.check()
    with pytest.raises(InvalidInput, match="belongs to a job"):
        said.configured(CONFIGURED, {})
    assert said.configured(CONFIGURED, SLURM).job == "auto"
