"""Jobs as launchers describe them."""

from dataclasses import replace

import pytest

from dieselfs.cluster.job import Job, count_nodes, expected_nodes, find_job, required_job, with_configured
from dieselfs.errors import InvalidInput
from dieselfs.settings.table import JobSettings

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURMD_NODENAME": "gpu07"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-head-17@1",
}


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (SLURM, Job("slurm-4711", 5, 16, "gpu07")),
        ({**SLURM, "SLURM_CLUSTER_NAME": "lab one"}, Job("slurm-lab-one-4711", 5, 16, "gpu07")),
        (TORCHRUN, Job("torchrun-10.0.0.1-29500", 3, 8, "host")),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "r/1"}, Job("torchrun-r-1", 3, 8, "host")),
        (OPEN_MPI, Job("mpi-prterun-head-17-1", 1, 4, "host")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_ess_base_jobid": "99"}, Job("mpi-99", 0, 1, "host")),
        ({**SLURM, **TORCHRUN}, Job("slurm-4711", 3, 8, "gpu07")),
        ({**SLURM, **OPEN_MPI}, Job("slurm-4711", 1, 4, "gpu07")),
        ({"SLURM_JOB_ID": "1"}, Job("slurm-1", 0, 1, "host")),
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),
        ({"OMPI_COMM_WORLD_RANK": "1"}, None),
    ],
    ids=str,
)
def test_launchers(environment: dict[str, str], job: Job | None) -> None:
    assert find_job(JobSettings(), environment, "host") == job


def test_options_go_first() -> None:
    assert find_job(JobSettings("mine"), SLURM, "host") == Job("mine", 5, 16, "gpu07")
    assert find_job(JobSettings("auto", job_rank=2, job_node="n"), SLURM, "host") == Job(
        "slurm-4711", 2, 16, "n"
    )
    assert find_job(JobSettings("mine"), {}, "host") == Job("mine", 0, 1, "host")
    assert find_job(JobSettings("mine", job_rank=6), {}, "host") == Job("mine", 6, 7, "host")


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({**SLURM, "SLURM_PROCID": "x"}, JobSettings(), "SLURM_PROCID in the environment is 'x'"),
        ({**SLURM, "SLURM_NTASKS": "99999999999"}, JobSettings(), "SLURM_NTASKS"),
        ({**TORCHRUN, "WORLD_SIZE": "3"}, JobSettings(), "no rank 3 among 3"),
        ({}, JobSettings("mine", job_rank=-1), "no rank -1"),
        ({}, JobSettings("a b"), "job name 'a b' is not allowed"),
        ({}, JobSettings(""), "job name '' is not allowed"),
        ({}, JobSettings("mine", job_node="a/b"), "node name"),
        ({}, JobSettings(job_rank=1), "a rank without a job"),
    ],
)
def test_what_makes_no_sense_is_said(environment: dict[str, str], options: JobSettings, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        find_job(options, environment, "host")


def test_long_names_of_launchers_are_cut() -> None:
    job = find_job(JobSettings(), {"PMIX_NAMESPACE": "n" * 500}, "host")
    assert job is not None and len(job.name) == 128


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({}, 0),
        ({"SLURM_JOB_NUM_NODES": "8"}, 8),
        ({"SLURM_JOB_NUM_NODES": "8", "GROUP_WORLD_SIZE": "4"}, 4),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"OMPI_COMM_WORLD_SIZE": "9", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 3),
        ({"WORLD_SIZE": "16"}, 0),
    ],
)
def test_how_many_nodes_a_launcher_speaks_of(environment: dict[str, str], nodes: int) -> None:
    assert count_nodes(environment) == nodes


def test_a_number_of_nodes_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="SLURM_NNODES"):
        count_nodes({"SLURM_NNODES": "many"})


NO_JOB = JobSettings()
ALL = JobSettings("train", 8, "node-3", 0, "10.0.0.3", "/run/secret")
CONFIGURED = JobSettings("auto", 4, "node-9", None, "10.0.0.9", "~/secret")


def test_what_is_not_said_is_taken_from_the_configuration() -> None:
    assert with_configured(NO_JOB, CONFIGURED, SLURM) == CONFIGURED
    assert with_configured(JobSettings("train"), CONFIGURED, {}) == replace(CONFIGURED, job="train")
    assert with_configured(ALL, CONFIGURED, SLURM) == ALL
    assert with_configured(ALL, NO_JOB, {}) == ALL


def test_without_a_launcher_auto_is_no_job_unless_it_is_asked_for() -> None:
    assert with_configured(NO_JOB, CONFIGURED, {}) == NO_JOB
    assert with_configured(JobSettings("auto"), CONFIGURED, {}).job == "auto"
    assert with_configured(JobSettings(""), CONFIGURED, SLURM) == NO_JOB


def test_what_is_said_of_no_job_needs_a_configured_one() -> None:
    said = JobSettings(job_nodes=3)
    with pytest.raises(InvalidInput, match="belongs to a job"):
        with_configured(said, CONFIGURED, {})
    assert with_configured(said, CONFIGURED, SLURM) == replace(CONFIGURED, job_nodes=3)


def test_nodes_that_are_given_go_before_those_of_the_launcher() -> None:
    assert expected_nodes(ALL, {"SLURM_NNODES": "3"}) == 8
    assert expected_nodes(JobSettings("auto"), {"SLURM_NNODES": "3"}) == 3


def test_a_job_that_no_launcher_gives_says_how_to_name_one() -> None:
    with pytest.raises(InvalidInput, match="name the job: --job NAME, -o job=NAME or DIESELFS_JOB=NAME"):
        required_job(None)
