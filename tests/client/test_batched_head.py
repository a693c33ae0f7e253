"""Rows of replies that run at once share a pass through the head, and each gets its own logits."""

import asyncio

import pytest
import torch

from swarm.client.batched_head import MAX_ROWS, BatchedHead
from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual


class CountingHead:
    """A head of one small matrix that notes how many rows each pass had."""

    def __init__(self) -> None:
        self.weight = torch.arange(20.0).reshape(5, 4)
        self.passes: list[int] = []

    def embed(self, ids):
        return torch.tensor(ids, dtype=torch.float32)

    def logits(self, hidden):
        self.passes.append(len(hidden))
        if hidden.isnan().any():
            raise RuntimeError("out of memory")
        return hidden @ self.weight.T


def rows(count):
    return [torch.full((1, 4), float(index)) for index in range(count)]


async def test_rows_that_wait_together_are_computed_together_and_each_gets_its_own():
    head = CountingHead()
    batched = BatchedHead(head, InlineCompute(0.001))
    results = await asyncio.gather(*(batched.logits(row) for row in rows(10)))
    for row, logits in zip(rows(10), results, strict=True):
        assert torch.equal(logits, (row @ head.weight.T)[0])
    assert head.passes == [10]


def test_a_row_that_comes_while_others_are_computed_joins_the_next_pass():
    async def run(head):
        batched = BatchedHead(head, InlineCompute(0.01))
        first = asyncio.create_task(batched.logits(rows(1)[0]))
        await asyncio.sleep(0.002)
        rest = [asyncio.create_task(batched.logits(row)) for row in rows(5)]
        await asyncio.gather(first, *rest)

    head = CountingHead()
    run_virtual(run(head))
    assert head.passes == [1, 5]


async def test_more_rows_than_fit_make_several_passes():
    head = CountingHead()
    batched = BatchedHead(head, InlineCompute())
    await asyncio.gather(*(batched.logits(row) for row in rows(MAX_ROWS + 3)))
    assert head.passes == [MAX_ROWS, 3]


def test_one_who_gives_up_does_not_disturb_the_others():
    async def run():
        batched = BatchedHead(CountingHead(), InlineCompute(0.01))
        tasks = [asyncio.create_task(batched.logits(row)) for row in rows(3)]
        await asyncio.sleep(0.001)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        return tasks

    tasks = run_virtual(run())
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert tasks[2].result()[1] == 2.0 * (4 + 5 + 6 + 7)


async def test_a_failure_reaches_everyone_of_the_pass_and_the_next_pass_works():
    batched = BatchedHead(CountingHead(), InlineCompute())
    bad = torch.full((1, 4), float("nan"))
    results = await asyncio.gather(batched.logits(bad), batched.logits(rows(1)[0]), return_exceptions=True)
    assert [type(result) for result in results] == [RuntimeError, RuntimeError]
    with pytest.raises(RuntimeError, match="out of memory"):
        await batched.logits(bad)
    assert (await batched.logits(rows(2)[1]))[0] == 6.0
