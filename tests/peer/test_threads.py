"""When a peer's threads are in each other's way, and when more are tried again."""

import asyncio

import pytest
import torch

from swarm.model.compute import InlineCompute
from swarm.model.config import read_config
from swarm.model.span import SpanModel
from swarm.model.weights import load_span
from swarm.peer.threads import FIRST_RETRY_S, LONGEST_RETRY_S, STEPS_TO_JUDGE, ThreadWatch
from swarm.peer.throughput import ThreadControl, Throughput, _more_threads, measure
from swarm.testing.clock import run_virtual
from swarm.values import Span


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tiny_directory) -> SpanModel:
    return load_span(tiny_directory, read_config(tiny_directory), Span(0, 2), dtype=torch.float32)


class Busy:
    """A clock that goes as fast as the threads that torch is set to."""

    def __init__(self, step_s):
        self.step_s = step_s
        self.time = 0.0
        self.counts = []

    def __call__(self):
        self.counts.append(torch.get_num_threads())
        self.time += self.step_s[torch.get_num_threads()] / 2
        return self.time


def watch(threads=2, may_choose=True):
    return ThreadWatch(threads, step_s=0.01, may_choose=may_choose)


def note(watched, elapsed_s, times=STEPS_TO_JUDGE):
    for _ in range(times):
        watched.note(elapsed_s)


def test_steps_that_take_many_times_as_long_are_a_collapse():
    watched = watch()
    note(watched, 0.3, STEPS_TO_JUDGE - 1)
    assert not watched.has_collapsed
    watched.note(0.3)
    assert watched.has_collapsed


def test_a_long_context_and_a_single_slow_step_are_none():
    watched = watch()
    note(watched, 0.03)
    watched.note(5.0)
    assert not watched.has_collapsed


def test_one_thread_and_a_number_that_was_asked_for_stay():
    for watched in (watch(threads=1), watch(may_choose=False)):
        note(watched, 1.0)
        assert not watched.has_collapsed


def test_more_threads_are_tried_again_later_and_later():
    watched, waits, now = watch(), [], 0.0
    watched.collapsed(now)
    for _ in range(8):
        start = now
        while not watched.wants_to_try(now):
            now += 1.0
        waits.append(now - start)
        watched.chosen(1, 0.01, now)
    assert waits[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert waits[-1] == LONGEST_RETRY_S


def test_nothing_is_tried_where_nothing_has_collapsed():
    watched = watch()
    note(watched, 0.01, 100)
    assert not watched.wants_to_try(1e9)
    watched.collapsed(0.0)
    watched.chosen(2, 0.01, 100.0)
    assert not watched.wants_to_try(1e9)


@pytest.mark.parametrize(
    ("step_s", "best"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.3}, 6),
        ({1: 1.0, 2: 0.6, 4: 0.5, 6: 0.9}, 4),
        ({1: 1.0, 2: 30.0}, 1),  # no more than three steps of it, and none with four
    ],
)
def test_as_many_threads_are_taken_as_are_fastest(model, monkeypatch, step_s, best):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    clock = Busy(step_s)
    measured = measure(model, clock=clock)
    assert (measured.threads, torch.get_num_threads(), measured.pinned) == (best, best, False)
    assert set(clock.counts) == set(step_s)


def test_a_number_that_is_asked_for_is_pinned(model):
    measured = measure(model, 2)
    assert (measured.threads, torch.get_num_threads(), measured.pinned) == (2, 2, True)


def test_powers_of_two_are_tried_and_all_cores():
    assert [_more_threads(cores) for cores in (1, 2, 3, 4, 8, 12)] == [
        [], [2], [2, 3], [2, 4], [2, 4, 8], [2, 4, 8, 12],
    ]  # fmt: skip


def test_a_peer_goes_on_with_one_thread_and_tries_more_when_it_rests(model, monkeypatch, caplog):
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    async def scene():
        torch.set_num_threads(2)
        control = ThreadControl(model, InlineCompute(), Throughput(2, 100.0, 1000.0))
        for _ in range(STEPS_TO_JUDGE):
            await control.note(8, 9.0)  # batches of several rows say nothing
        assert torch.get_num_threads() == 2
        for _ in range(STEPS_TO_JUDGE):
            await control.note(1, 0.4)
        collapsed = torch.get_num_threads()
        await control.rest()
        early = control.throughput.decode_tokens_per_s
        await asyncio.sleep(FIRST_RETRY_S)
        await control.rest()
        return collapsed, early, control.throughput

    collapsed, early, measured = run_virtual(scene())
    assert (collapsed, early) == (1, 100.0)
    assert measured.decode_tokens_per_s != 100.0
    assert torch.get_num_threads() == measured.threads
    assert "in each other's way" in caplog.text
