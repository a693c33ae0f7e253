"""How signals end a program, also one whose threads cannot be stopped."""

import signal
import subprocess
import sys

import pytest

STUCK_S = 3600

PROGRAM = f"""
import asyncio, sys, time
from concurrent.futures import ThreadPoolExecutor
from swarm.cli import runtime
runtime.FORCE_AFTER_S = 0.5
pool = ThreadPoolExecutor(1)

def compute():
    print("computing", flush=True)
    time.sleep({STUCK_S})

async def service(stop):
    computed = asyncio.get_running_loop().run_in_executor(executor, compute)
    try:
        if stop is not None:
            await stop.wait()
            print("told", flush=True)
        await computed
    except asyncio.CancelledError:
        print("told", flush=True)
        raise

async def polite(stop):
    print("computing", flush=True)
    try:
        await stop.wait()
        print("draining", flush=True)
        await asyncio.sleep({STUCK_S})
    finally:
        await asyncio.sleep(0.1)
        print("put away", flush=True)
"""
LOOPS_EXECUTOR = "executor = None\n"
OWN_THREAD = "executor = pool\n"
SERVICE = "runtime.run_service(service)\n"
COMMAND = "runtime.run_command(service(None))\n"


def start(*parts: str) -> subprocess.Popen[str]:
    """A program whose event loop runs and, unless it is polite, waits for a thread."""
    process = subprocess.Popen(
        [sys.executable, "-c", "".join((PROGRAM, *parts))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "computing\n"
    return process


@pytest.mark.parametrize(
    ("executor", "program"),
    [(LOOPS_EXECUTOR, SERVICE), (OWN_THREAD, SERVICE), (LOOPS_EXECUTOR, COMMAND)],
    ids=["service, loop's thread", "service, own thread", "command, loop's thread"],
)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_a_program_whose_thread_still_computes(executor, program, number, status):
    with start(executor, program) as process:
        try:
            process.send_signal(number)
            assert process.stdout.readline() == "told\n"  # two signals that come at once are one
            process.send_signal(number)
            assert process.wait(timeout=100) == status
        finally:
            process.kill()


def test_a_second_signal_lets_a_service_put_away_what_it_has_open():
    with start("runtime.run_service(polite)\n") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "put away\n"
        assert process.wait(timeout=100) == 0


def test_the_end_of_its_terminal_lets_a_service_drain_however_often_it_is_told():
    with start("runtime.run_service(polite)\n") as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "put away\n"
        assert process.wait(timeout=100) == 0


def test_what_was_started_with_nohup_outlives_its_terminal():
    ignoring = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    with start(ignoring, "runtime.run_service(polite)\n") as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.kill()
        assert process.stdout.read() == ""
