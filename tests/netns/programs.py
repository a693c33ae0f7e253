"""Programs of a swarm, each on a host of its own."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from swarm.testing.tiny_models import TinyModel, write_tiny_model

PORT = 31337
START_S = 60


class Program:
    """A `swarm` process on one host. Its lines are kept with the moment each came."""

    def __init__(self, process, number):
        self.process = process
        self.number = number
        self.begun = time.monotonic()
        self.events, self.notes = [], []  # (seconds since the start, line)
        self.id = self.metrics = ""  # of a peer, once it has joined
        self._changed = asyncio.Condition()
        self._reading = [
            asyncio.create_task(self._read(process.stdout, self.events)),
            asyncio.create_task(self._read(process.stderr, self.notes)),
        ]

    @classmethod
    async def start(cls, hosts, number, home, *arguments):
        process = await asyncio.create_subprocess_exec(
            *hosts.command(number, sys.executable, "-m", "swarm", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "SWARM_HOME": str(home / str(number)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        return cls(process, number)

    @property
    def now(self):
        """Seconds since it was started."""
        return time.monotonic() - self.begun

    def said(self):
        """All it wrote on stderr."""
        return "".join(line for _, line in self.notes)

    async def event(self, name, timeout_s=START_S, which=lambda entry: True):
        """The first event of that name (of those that are wanted); a script's --json gives them."""

        def found():
            for _, line in self.events:
                entry = json.loads(line)
                if entry.get("event") == name and which(entry):
                    return entry
            return None

        await self.wait_for(lambda: found() is not None, f"the event {name}", timeout_s)
        return found()

    async def note(self, text, timeout_s=START_S):
        """Wait until a line on stderr has that text; gives how long after the start it came."""
        await self.wait_for(lambda: text in self.said(), f"{text!r}", timeout_s)
        return next(moment for moment, line in self.notes if text in line)

    async def wait_for(self, happened, what, timeout_s):
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: happened() or all(task.done() for task in self._reading))
        except TimeoutError:
            raise AssertionError(
                f"host {self.number}: {what} did not come within {timeout_s} s; it said:\n{self.said()}"
            ) from None
        assert happened(), f"host {self.number} ended before {what}; it said:\n{self.said()}"

    async def ended(self, timeout_s):
        """Its exit status, once it has ended."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait(self._reading)
            return await self.process.wait()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self):
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), 20)
            except TimeoutError:
                self.kill()
                await self.process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _read(self, stream, lines):
        while line := await stream.readline():
            lines.append((self.now, line.decode()))
            async with self._changed:
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()


async def start_bootstrap(hosts, home, number, *options, host="0.0.0.0"):  # noqa: S104 - in its namespace
    """A bootstrap node; gives it and the address to join it by."""
    listen = ["--listen", f"{host}:{PORT}", "--json", "--until-eof"]
    program = await Program.start(hosts, number, home, "bootstrap", *listen, *options)
    joined = await program.event("joined")
    program.id = joined["peer"]
    version = 6 if ":" in host else 4
    return program, f"/ip{version}/{hosts.address(number, version)}/tcp/{PORT}/p2p/{program.id}"


async def start_peer(hosts, home, number, model, join, span, *options):
    """A peer that has begun to join."""
    arguments = ["--blocks", span, "--dtype", "fp32", "--threads", "1", "--memory", "1GiB", "--drain", "2s"]
    joins = [word for address in ([join] if isinstance(join, str) else join) for word in ("--join", address)]
    return await Program.start(
        hosts, number, home, "peer", str(model), *joins, *arguments, "--json", "--until-eof", *options
    )


async def online(peer, timeout_s=START_S):
    """Wait until the peer says that it is online; its id and where its metrics are are kept."""
    joined = await peer.event("joined", timeout_s)
    peer.id, peer.metrics = joined["peer"], f"{joined['monitor']}/metrics"
    return await peer.event("online", timeout_s)


async def start_reply(hosts, home, number, model, join, tokens, *options, prompt="Once upon a time"):
    """A client that generates; its text comes on stdout."""
    arguments = ["generate", str(model), prompt, "--raw", "--temperature", "0.9", "--seed", "7"]
    joins = [word for address in ([join] if isinstance(join, str) else join) for word in ("--join", address)]
    return await Reply.start(
        hosts, number, home, *arguments, "--max-tokens", str(tokens), *joins, "--spares", "off", *options
    )


class Reply(Program):
    """A client whose text is read as it comes, with the moment of each piece."""

    async def _read(self, stream, lines):
        if stream is self.process.stderr:
            await super()._read(stream, lines)
            return
        while piece := await stream.read(65536):
            lines.append((self.now, piece.decode(errors="replace")))
            async with self._changed:
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    @property
    def text(self):
        return "".join(piece for _, piece in self.events)

    async def begun_text(self, characters=20, timeout_s=START_S):
        await self.wait_for(lambda: len(self.text) >= characters, f"{characters} characters", timeout_s)

    def goes_on_after(self, moment):
        """When the first piece came after that moment, in seconds since the start; None if none has."""
        return next((at for at, _ in self.events if at > moment), None)


def write_endless_model(directory):
    """A tiny model without an end of text, so that a reply is as long as a test wants it."""
    write_tiny_model(directory, TinyModel(num_blocks=6, overrides={"max_position_embeddings": 16384}))
    for name, field in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        path = directory / name
        fields = json.loads(path.read_text())
        fields.pop(field, None)
        path.write_text(json.dumps(fields))
    return directory
