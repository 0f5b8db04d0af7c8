"""Bulk bytes in flight: users share the budget, wait for each other, and are refused after a bounded wait."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from dieselfs.errors import Unavailable
from dieselfs.limits import BULK_BYTES_MAX, BULK_BYTES_PER_USER_MAX, CHUNK_OBJECT_BYTES_MAX
from dieselfs.rpc.serving.byte_budget import ByteBudget

WAIT_S = 60.0


@asynccontextmanager
async def held(budget: ByteBudget, user: str, size_bytes: int) -> AsyncIterator[None]:
    taken_bytes = await budget.take(user, size_bytes)
    try:
        yield
    finally:
        budget.give(user, taken_bytes)


def test_the_largest_chunk_fits() -> None:
    assert CHUNK_OBJECT_BYTES_MAX <= BULK_BYTES_PER_USER_MAX < BULK_BYTES_MAX


def test_a_user_cannot_take_the_share_of_others() -> None:
    async def scenario() -> None:
        budget = ByteBudget("uploads", total_bytes=100, user_bytes=60, wait_s=0.01)
        async with held(budget, "mal", 60):
            with pytest.raises(Unavailable, match="user mal"):
                async with held(budget, "mal", 1):
                    pass
            async with held(budget, "ada", 40):
                with pytest.raises(Unavailable):
                    async with held(budget, "bob", 1):
                        pass
        async with held(budget, "mal", 60):
            pass

    trio.run(scenario)


def test_a_reply_that_is_larger_than_the_share_of_a_user_takes_all_of_it() -> None:
    async def scenario() -> None:
        budget = ByteBudget("replies", total_bytes=100, user_bytes=60, wait_s=0.01)
        async with held(budget, "ada", 1000):
            with pytest.raises(Unavailable, match="replies of user ada"):
                async with held(budget, "ada", 1):
                    pass
            async with held(budget, "bob", 40):
                pass
        async with held(budget, "ada", 60):
            pass

    trio.run(scenario)


def test_a_call_waits_for_bytes_that_others_give_back() -> None:
    async def scenario() -> None:
        budget, order = ByteBudget("uploads", total_bytes=100, user_bytes=100, wait_s=WAIT_S), []

        async def upload(number: int) -> None:
            async with held(budget, "ada", 80):
                order.append(number)
                await trio.sleep(0)
                assert order[-1] == number  # nobody else got bytes meanwhile

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(upload, number)
        assert sorted(order) == list(range(5))

    trio.run(scenario)
