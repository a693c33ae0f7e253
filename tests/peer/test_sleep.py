"""The system's sleep signal, on a real D-Bus of our own with a logind of our own."""

import asyncio
import contextlib
import logging
import os
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jeepney import (
    DBusAddress,
    HeaderFields,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.fds import FileDescriptor
from jeepney.io.blocking import open_dbus_connection

from swarm.peer import sleep
from swarm.peer.sleep import follow_sleep

NAME = "org.freedesktop.login1"
MANAGER = DBusAddress("/org/freedesktop/login1", NAME, f"{NAME}.Manager")
CONFIG = """<busconfig>
  <listen>unix:path={path}</listen>
  <policy context="default">
    <allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>
"""


class Bus:
    """A message bus of one test."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:path={directory / 'bus'}"
        config = directory / "bus.conf"
        config.write_text(CONFIG.format(path=directory / "bus"))
        self.daemon = subprocess.Popen(
            ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"],
            stdout=subprocess.PIPE,
        )
        assert self.daemon.stdout.readline().startswith(b"unix:path=")

    def close(self) -> None:
        self.daemon.terminate()
        self.daemon.wait()
        self.daemon.stdout.close()


class Logind:
    """As much of systemd-logind as inhibitors need: hands out locks, and sees which are still held."""

    def __init__(self, bus: Bus, *, refuses: bool = False) -> None:
        self._refuses = refuses
        self.silent = False  # takes calls and does not answer, like a system that is busy waking up
        self._locks: list[int] = []  # our ends; the other end closed is a lock released
        self.asked: list[tuple[str, ...]] = []
        self._connection = open_dbus_connection(bus.address, enable_fds=True)
        self._connection.send_and_get_reply(message_bus.RequestName(NAME), timeout=5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def held(self) -> int:
        """Locks that nobody has released yet."""
        return len(self._locks) - len(select.select(self._locks, [], [], 0)[0])

    def prepare_for_sleep(self, going: bool) -> None:
        """Tell everybody, as before and after a suspend."""
        self._connection.send(new_signal(MANAGER, "PrepareForSleep", "b", (going,)))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()
        for lock in self._locks:
            os.close(lock)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                call = self._connection.receive(timeout=0.02)
            except TimeoutError:
                continue
            except ConnectionResetError:
                return
            if call.header.message_type is MessageType.method_call:
                self._answer(call)

    def _answer(self, call) -> None:
        if call.header.fields[HeaderFields.member] == "Get":
            assert call.body == (f"{NAME}.Manager", "InhibitDelayMaxUSec")
            self._connection.send(new_method_return(call, "v", (("t", 5_000_000),)))
            return
        self.asked.append(call.body)
        if self.silent:
            return
        if self._refuses:
            denied = "org.freedesktop.DBus.Error.AccessDenied"
            self._connection.send(new_error(call, denied, "s", ("not here",)))
            return
        ours, theirs = os.pipe()
        self._locks.append(ours)
        with FileDescriptor(theirs) as lock:
            self._connection.send(new_method_return(call, "h", (lock,)))


@pytest.fixture
def bus(tmp_path) -> Iterator[Bus]:
    if shutil.which("dbus-daemon") is None:
        pytest.skip("needs dbus-daemon (Debian package dbus-daemon)")
    bus = Bus(tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def logind(bus) -> Iterator[Logind]:
    logind = Logind(bus)
    yield logind
    logind.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is on another thread
            await asyncio.sleep(0.01)


class Follower:
    """What a peer would be told, and how many locks were held when it was."""

    def __init__(self, bus: Bus, logind: Logind, *, hesitates: bool = False) -> None:
        self.told: list[tuple[str, int]] = []
        self.may_sleep = asyncio.Event()
        self.within_s = 0.0
        self._logind = logind
        if not hesitates:
            self.may_sleep.set()
        self.task = asyncio.create_task(follow_sleep(self._on_sleep, self._on_wake, bus.address))

    async def _on_sleep(self, within_s: float) -> None:
        self.within_s = within_s
        self.told.append(("sleep", self._logind.held))
        await self.may_sleep.wait()

    async def _on_wake(self) -> None:
        self.told.append(("wake", self._logind.held))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def following(bus, logind, **settings):
    follower = Follower(bus, logind, **settings)
    try:
        await until(lambda: logind.held == 1)
        yield follower
    finally:
        await follower.close()


async def test_the_machine_does_not_sleep_before_the_sessions_have_moved(bus, logind):
    async with following(bus, logind, hesitates=True) as follower:
        logind.prepare_for_sleep(True)
        await until(lambda: follower.told)
        await asyncio.sleep(0.1)
        assert logind.held == 1
        follower.may_sleep.set()
        await until(lambda: logind.held == 0)
    assert follower.told == [("sleep", 1)]


async def test_the_sessions_get_less_time_than_the_system_waits(bus, logind):
    async with following(bus, logind) as follower:
        logind.prepare_for_sleep(True)
        await until(lambda: follower.told)
        assert follower.within_s == 4


async def test_after_waking_the_next_sleep_is_delayed_again(bus, logind):
    async with following(bus, logind) as follower:
        for nights in (1, 2, 3):
            logind.prepare_for_sleep(True)
            await until(lambda: logind.held == 0)
            logind.prepare_for_sleep(False)
            await until(lambda nights=nights: len(follower.told) == 2 * nights)
    assert follower.told == [("sleep", 1), ("wake", 1)] * 3


async def test_a_sleep_called_off_while_sessions_move_is_followed_by_a_wake(bus, logind):
    async with following(bus, logind, hesitates=True) as follower:
        logind.prepare_for_sleep(True)
        logind.prepare_for_sleep(False)
        await until(lambda: follower.told)
        follower.may_sleep.set()
        await until(lambda: len(follower.told) == 2)
    assert [event for event, _ in follower.told] == ["sleep", "wake"]


async def test_logind_is_told_who_delays_sleep_and_why(bus, logind):
    async with following(bus, logind):
        assert logind.asked == [("sleep", "swarm peer", "sessions move to other peers", "delay")]


async def test_a_peer_that_stops_holds_no_lock_any_more(bus, logind):
    async with following(bus, logind):
        pass
    await until(lambda: logind.held == 0)


async def test_a_bus_that_dies_while_the_machine_sleeps_counts_as_waking(bus, logind, monkeypatch):
    monkeypatch.setattr(sleep, "RETRY_S", 0.1)
    async with following(bus, logind) as follower:
        logind.prepare_for_sleep(True)
        await until(lambda: logind.held == 0)
        bus.daemon.kill()
        await asyncio.wait_for(follower.task, 60)
    assert [event for event, _ in follower.told] == ["sleep", "wake"]


async def test_a_logind_that_does_not_answer_just_after_a_sleep_is_asked_again(bus, logind, monkeypatch):
    monkeypatch.setattr(sleep, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sleep, "RETRY_S", 0.2)
    async with following(bus, logind) as follower:
        logind.prepare_for_sleep(True)
        await until(lambda: logind.held == 0)
        logind.silent = True
        logind.prepare_for_sleep(False)
        await until(lambda: len(follower.told) == 2)
        await until(lambda: len(logind.asked) == 4)  # and does not answer when asked again, either
        logind.silent = False
        await until(lambda: logind.held == 1)
        logind.prepare_for_sleep(True)
        await until(lambda: len(follower.told) == 3)
    assert [event for event, _ in follower.told] == ["sleep", "wake", "sleep"]


async def nobody(*_: float) -> None:
    raise AssertionError("there was no sleep")


async def reason_to_go_without(caplog, address: str) -> str:
    caplog.set_level(logging.INFO, "swarm.peer.sleep")
    await asyncio.wait_for(follow_sleep(nobody, nobody, address), 60)
    [message] = caplog.messages
    assert [record.levelname for record in caplog.records] == ["INFO"]
    return message


async def test_without_a_bus_the_peer_goes_on_and_says_why(caplog, tmp_path):
    assert "No such file" in await reason_to_go_without(caplog, f"unix:path={tmp_path / 'none'}")


@pytest.mark.parametrize("address", ["tcp:host=127.0.0.1,port=1", "nonsense"])
async def test_with_an_address_that_is_none_the_peer_goes_on_and_says_why(caplog, address):
    assert "The bus cannot be used" in await reason_to_go_without(caplog, address)


async def test_without_logind_the_peer_goes_on_and_says_why(caplog, bus):
    assert NAME in await reason_to_go_without(caplog, bus.address)


async def test_when_the_lock_is_refused_the_peer_goes_on_and_says_why(caplog, bus):
    logind = Logind(bus, refuses=True)
    try:
        assert "AccessDenied" in await reason_to_go_without(caplog, bus.address)
    finally:
        logind.close()
