"""The table of benchmarks agrees with their modules."""

from importlib import import_module

import pytest

from bench.registry import BENCHMARKS, ONLY_IF_NAMED


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_a_function_of_the_module_of_its_name(name: str) -> None:
    assert callable(getattr(import_module(f"bench.{BENCHMARKS[name]}.{name}"), name))


def test_what_repeats_others_is_a_benchmark() -> None:
    assert set(ONLY_IF_NAMED) <= set(BENCHMARKS)
