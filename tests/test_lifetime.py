"""A service ends when it is told to, and when something it stands on has ended; never later."""

import asyncio

import pytest

from swarm.errors import NetworkError
from swarm.lifetime import MAX_FAILURES, persist, until_stopped
from swarm.testing.clock import run_virtual


class Node:
    """A node that is lost for good after so many seconds, or never."""

    def __init__(self, lost_after_s: float = 1e9) -> None:
        self._lost_after_s = lost_after_s

    async def wait_failed(self) -> NetworkError:
        await asyncio.sleep(self._lost_after_s)
        return NetworkError("The daemon died 8 times in a row")


def outcome(node: Node, *work, stop_after_s: float = 60.0) -> tuple[float, str, int]:
    """When the wait ended, with which error, and how many of the tasks watched still run."""

    async def run():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(stop_after_s, stop.set)
        tasks, error = [asyncio.create_task(each) for each in work], ""
        try:
            await until_stopped(stop, node, tasks)
        except (NetworkError, ZeroDivisionError) as raised:
            error = type(raised).__name__
        return loop.time(), error, sum(not task.done() for task in tasks)

    return run_virtual(run())


async def after(seconds: float, fails: bool = False) -> None:
    await asyncio.sleep(seconds)
    if fails:
        raise ZeroDivisionError


def test_it_waits_until_told_to_stop_and_leaves_the_tasks_running():
    assert outcome(Node(), after(1e6), after(1e6)) == (60, "", 2)


def test_a_node_that_is_lost_for_good_ends_the_wait():
    assert outcome(Node(lost_after_s=5), after(1e6)) == (5, "NetworkError", 1)


def test_a_node_that_was_lost_before_ends_it_at_once():
    assert outcome(Node(lost_after_s=0)) == (0, "NetworkError", 0)


def test_a_task_that_fails_ends_the_wait_with_its_error():
    assert outcome(Node(), after(1e6), after(7, fails=True)) == (7, "ZeroDivisionError", 1)


def test_a_task_that_returns_does_not():
    assert outcome(Node(), after(1), after(2)) == (60, "", 0)


def test_work_that_fails_is_done_again_and_seen(caplog):
    outcomes = iter([OSError(24, "Too many open files"), ValueError("a mistake"), None])

    async def work() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    run_virtual(persist("announcer", work))
    assert [record.message for record in caplog.records] == ["The announcer failed; it is started again"] * 2


def test_a_mistake_that_comes_again_and_again_is_raised(caplog):
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(persist("announcer", work))
    assert len(caplog.records) == MAX_FAILURES


def test_what_the_system_refuses_is_tried_for_as_long_as_it_takes(caplog):
    outcomes = iter([OSError(24, "Too many open files")] * 100)

    async def work() -> None:
        if (error := next(outcomes, None)) is not None:
            raise error

    run_virtual(persist("announcer", work))
    assert len(caplog.records) == 100
