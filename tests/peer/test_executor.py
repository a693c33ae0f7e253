"""The executor runs steps in batches, and whatever goes wrong leaves every cache where it was."""

import asyncio

import pytest
import torch
from peer_scene import rows

from swarm.errors import SessionRefused, UsageError
from swarm.model.compute import InlineCompute
from swarm.model.config import read_config
from swarm.model.span import SpanModel
from swarm.model.weights import load_span
from swarm.peer.executor import Executor
from swarm.peer.sessions import PeerSession, SessionLimits, SessionTable
from swarm.testing.clock import run_virtual
from swarm.values import PeerId, Span
from swarm.wire.messages import Open

SPAN = Span(0, 2)


@pytest.fixture(scope="module")
def model(tiny_directory) -> SpanModel:
    return load_span(tiny_directory, read_config(tiny_directory), SPAN, dtype=torch.float32)


class Failing(InlineCompute):
    """Fails once with the error it is given."""

    error: Exception | None = None

    async def run(self, work):
        if self.error:
            error, self.error = self.error, None
            raise error
        return await super().run(work)


class Bench:
    """An executor at work, and sessions for it."""

    def __init__(self, model: SpanModel, compute: InlineCompute) -> None:
        self.table = SessionTable(model, SessionLimits(2**24, 256))
        self.executor = Executor(model, compute)

    def session(self, name: str, **fields: object) -> PeerSession:
        return self.table.open(
            Open(
                **{
                    "wire_version": 1, "session": name, "epoch": 0, "manifest": "", "start": 0, "end": 2,
                    "dtype": "fp32", "quantization": "none", "codec": "fp32", "max_tokens": 256,
                    "lease_s": 1.0, "owner": "owner", "proof": b"",
                } | fields
            ),
            PeerId("client"), 0.0,
        )  # fmt: skip


def run(model: SpanModel, work, compute: InlineCompute | None = None):
    async def main():
        bench = Bench(model, compute or InlineCompute(1.0))
        running = asyncio.create_task(bench.executor.run())
        try:
            return await work(bench)
        finally:
            running.cancel()

    return run_virtual(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_steps_of_sessions_that_wait_together_share_one_batch(model):
    async def work(bench):
        sessions = [bench.session(name) for name in "abc"]
        await asyncio.gather(*(bench.executor.step(session, rows(1)) for session in sessions))
        return now(), [session.position for session in sessions]

    assert run(model, work) == (1.0, [1, 1, 1])


def test_a_step_in_a_batch_gives_what_it_gives_alone(model):
    async def together(bench):
        a, b = bench.session("a"), bench.session("b")
        results = await asyncio.gather(
            bench.executor.step(a, rows(3, seed=1)), bench.executor.step(b, rows(5, seed=2))
        )
        return results[1].hidden

    async def alone(bench):
        return (await bench.executor.step(bench.session("b"), rows(5, seed=2))).hidden

    assert torch.allclose(run(model, together), run(model, alone), atol=1e-5)


def test_a_long_step_is_computed_in_slices_and_answered_whole(model):
    async def work(bench):
        session = bench.session("a")
        result = await bench.executor.step(session, rows(200))
        return now(), session.position, result.hidden.shape[0], result.compute_ms

    assert run(model, work) == (2.0, 200, 200, pytest.approx(2000.0))


def test_the_time_in_the_queue_is_told_apart_from_the_computation(model):
    async def work(bench):
        first = bench.executor.step(bench.session("a"), rows(1))
        await asyncio.sleep(0.25)
        result = await bench.executor.step(bench.session("b"), rows(1))
        await first
        return result.compute_ms, result.queue_ms

    assert run(model, work) == (pytest.approx(1000.0), pytest.approx(750.0))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("not enough memory: you tried to allocate 1 GB"),  # as torch says it
        UsageError("not enough memory, says a bug"),
        KeyError("not enough memory, says another"),
    ],
)
def test_a_failed_computation_refuses_the_step_and_moves_no_position(model, error):
    compute = Failing(1.0)

    async def work(bench):
        session = bench.session("a")
        await bench.executor.step(session, rows(2))
        compute.error = error
        with pytest.raises(SessionRefused, match="not enough memory") as refused:
            await bench.executor.step(session, rows(1))
        kept = session.position
        await bench.executor.step(session, rows(1))
        return refused.value.fault_code, kept, session.position, bench.executor.queue_depth

    assert run(model, work, compute) == ("compute_failed", 2, 3, 0)


def test_drain_drops_what_waits_and_waits_for_what_runs(model):
    async def work(bench):
        session = bench.session("a")
        stepping = bench.executor.step(session, rows(200))
        await asyncio.sleep(0.5)  # the first of two slices is being computed
        stepping.cancel()
        await bench.executor.drain(session)
        return now(), session.position, bench.executor.queue_depth

    assert run(model, work) == (1.0, 128, 0)


def test_a_step_that_is_drained_is_refused_to_whoever_waits_for_it(model):
    async def work(bench):
        running = bench.executor.step(bench.session("other"), rows(1))
        await asyncio.sleep(0.5)
        session = bench.session("a")
        waiting = bench.executor.step(session, rows(1))
        await bench.executor.drain(session)
        drained_at = now()
        with pytest.raises(SessionRefused, match="The step is void") as refused:
            await waiting
        await running
        return drained_at, refused.value.fault_code, session.position, bench.executor.queue_depth

    assert run(model, work) == (0.5, "fenced", 0, 0)


def test_a_step_is_queued_at_once_so_that_a_drain_cannot_miss_it(model):
    async def work(bench):
        session = bench.session("a")
        step = bench.executor.step(session, rows(1))
        await bench.executor.drain(session)
        await asyncio.sleep(5)
        return step.done(), session.position

    assert run(model, work) == (True, 0)


def test_a_step_that_is_void_takes_no_turn(model):
    async def work(bench):
        steps = [bench.executor.step(bench.session("first"), rows(1))]
        await asyncio.sleep(0.5)
        void = bench.executor.step(bench.session("void"), rows(250))
        steps += [bench.executor.step(bench.session(str(count)), rows(count)) for count in (1, 100)]
        void.cancel()
        await asyncio.gather(*steps)
        return now()

    assert run(model, work) == 2.0


def test_a_session_that_took_the_place_of_another_is_drained_alone(model):
    async def work(bench):
        before, after = bench.session("a"), bench.session("a", end=1, epoch=1)
        kept, drained = bench.executor.step(before, rows(1)), bench.executor.step(after, rows(1))
        await bench.executor.drain(after)
        await kept
        return drained.done(), before.position, after.position

    assert run(model, work) == (True, 1, 0)


def test_what_waits_of_a_spare_that_is_promoted_takes_its_turn_with_the_others(model):
    async def work(bench):
        spare, ends = bench.session("spare", role="spare"), {}
        prompts = [bench.executor.step(bench.session(name), rows(250)) for name in "ab"]
        step = bench.executor.step(spare, rows(1))
        step.add_done_callback(lambda _: ends.update(step=now()))
        await asyncio.sleep(0.5)
        bench.executor.promote(spare)
        await asyncio.gather(step, *prompts)
        return ends["step"], now()

    assert run(model, work) == (2.0, 4.0)


def test_a_step_that_is_given_up_ends_when_nothing_of_it_runs(model):
    async def work(bench):
        session, ends = bench.session("a"), {}
        step = bench.executor.step(session, rows(250))
        step.add_done_callback(lambda _: ends.update(step=now()))
        other = bench.executor.step(bench.session("b"), rows(250))
        await asyncio.sleep(0.5)
        bench.executor.give_up(session, 1)  # it begins before that
        await asyncio.sleep(0.2)
        bench.executor.give_up(session, 0)
        await other
        waiting = bench.executor.step(session, rows(1))
        bench.executor.give_up(session, session.position)
        return step.cancelled(), ends["step"], session.position, waiting.cancelled(), now()

    assert run(model, work) == (True, 1.0, 128, True, 3.0)
