"""Longer troubles than one fault: outages, restarts, sleep, and clients that die or sleep themselves."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from swarm.bench.chaos.acts import any_one_and_its_replicas, freeze, kill
from swarm.bench.chaos.harness import HarnessPeer, joining
from swarm.bench.chaos.scenario_run import ScenarioRun
from swarm.network.memory import LinkConditions
from swarm.testing.faults import NodeProcesses
from swarm.values import Span

BOOTSTRAP_DOWN_S = 120.0
ALL_ASLEEP_S = 90.0
WHOLE_WITHIN_S = 30.0
FOUND_AGAIN_S = 5.0  # after a peer is back
LOADED_WITHIN_S = 5.0  # blocks that the client runs itself
NAP_S = 6.0  # longer than any lease
RESTARTS = 5
CLIENT_TOKENS = 400
CLIENT_PROMPT = "Once upon a time there was a swarm."
CLIENT_TIMEOUT_S = 90.0


async def sleep_and_wake(run: ScenarioRun) -> None:
    """A hop sleeps, the reply moves on, the hop wakes: it is one ready peer again and can be used."""
    sleeper = (await _do(run, freeze()))[0]
    await asyncio.sleep(max(0.0, NAP_S - run.harness.config.lease_s))
    sleeper.processes.thaw()
    await _whole_again(run)
    for other in run.harness.replicas(sleeper):
        other.link.set_link(LinkConditions(cut=True))
        run.disturbed.add(other)
    await run.join()
    replies = await run.ask()
    run.require(not any(reply.error for reply in replies), f"{sleeper.name} cannot be used after it woke")


async def all_sleep(run: ScenarioRun) -> None:
    """Every peer sleeps for longer than its record lives; the swarm is whole again soon after."""
    await run.ask()
    run.disturbed.update(run.harness.peers)
    for peer in run.harness.peers:
        peer.processes.freeze()
    await asyncio.sleep(ALL_ASLEEP_S)
    for peer in run.harness.peers:
        peer.processes.thaw()
    await _whole_again(run)
    await run.ask()


async def bootstrap_down(run: ScenarioRun) -> None:
    """The bootstrap is gone for minutes: replies go on, newcomers join through a peer; it comes back."""
    harness = run.harness

    async def stop(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
        await harness.stop_bootstrap()

    await run.ask_during(stop)
    run.require(run.losses == 0, "a reply lost a hop because the bootstrap went")
    through = harness.peers[0].address
    await harness.add_peer(harness.peers[0].span, join=[through])
    await run.join(through=[through])
    await run.ask()
    await asyncio.sleep(BOOTSTRAP_DOWN_S)
    await run.ask()
    await harness.start_bootstrap()
    await _whole_again(run)
    await run.join()
    await run.ask()


async def rejoin(run: ScenarioRun) -> None:
    """One peer is killed and started again five times: it is one peer to everybody, and serves."""
    harness = run.harness
    peer = (await _do(run, kill()))[0]
    for _ in range(RESTARTS - 1):
        await harness.restart(peer)
        peer.processes.kill_python()
    await harness.restart(peer)
    await _whole_again(run)
    await run.join()
    await run.ask()


async def outage(run: ScenarioRun) -> None:
    """All replicas of a span die; one comes back while the client waits, and the reply goes on."""
    down_s = 0.0

    async def kill_and_restart_one(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
        victims = any_one_and_its_replicas(run, chain)
        killed_at = asyncio.get_running_loop().time()
        await kill(lambda *_: victims)(run, chain)
        await run.harness.restart(victims[0])
        nonlocal down_s
        down_s = asyncio.get_running_loop().time() - killed_at

    await run.ask_during(kill_and_restart_one)
    run.require(run.losses > 0, "no loss was noticed")
    run.require_stall_below(down_s + FOUND_AGAIN_S)


async def local_fallback(run: ScenarioRun) -> None:
    """All replicas of a span die and stay dead; the client has the weights and runs the blocks itself."""
    told: list[str] = []
    await run.join(replace(run.harness.options, local_fallback=True, on_local=told.append))
    await run.ask_during(kill(any_one_and_its_replicas))
    run.require(run.losses > 0, "no loss was noticed")
    run.require(bool(told), "the client did not say that it runs blocks itself")
    run.require_stall_below(_patient(run) + LOADED_WITHIN_S)


async def other_cuts(run: ScenarioRun) -> None:
    """A lost span has no replica of its own; two peers that cut the model elsewhere cover it."""
    harness = run.harness
    lost = harness.config.spans[1]
    middle = (lost.start + lost.end) // 2
    await harness.add_peer(Span(lost.start - 1, middle))
    await harness.add_peer(Span(middle, lost.end + 1))
    victims = [peer for peer in harness.peers if peer.span == lost]
    await run.ask_during(kill(lambda *_: victims))
    run.require(run.losses > 0, "no loss was noticed")
    run.require_stall_below(_patient(run))


async def promote_spare(run: ScenarioRun) -> None:
    """A hop with a warm spare dies: only what the spare lags behind is replayed."""
    await run.join(replace(run.harness.options, spares="always"))
    replies = await run.ask_during(kill())
    resumes = [resume for reply in replies for resume in reply.resumes]
    run.require(bool(resumes), "no loss was noticed")
    for resume in resumes:
        run.require(
            resume.replayed_tokens < 20, f"no spare was promoted: {resume.replayed_tokens} tokens replayed"
        )
    usual_s = max(reply.median_s for reply in replies)
    run.require_stall_below(max(5 * usual_s, run.noise_s))


async def client_sleeps(run: ScenarioRun) -> None:
    """The client's machine sleeps in mid-reply and goes on with its own sessions."""
    expected = await _generate(run)
    reply = await _generate(run, _nap)
    run.compare(reply["token_ids"], expected["token_ids"])


async def client_crashes(run: ScenarioRun) -> None:
    """A chat is killed in mid-reply and resumed: its transcript is the one it would have been."""
    await _chat(run, "whole", [CLIENT_PROMPT])
    expected = _transcript(run, "whole")
    shown = await _chat(run, "broken", [CLIENT_PROMPT], kill_after_bytes=60)
    kept = _transcript(run, "broken")
    run.require(kept == expected[: len(kept)], "the reply was wrong before the crash")
    run.require(
        0 < len(kept) < len(expected), f"the chat was not killed in mid-reply: {len(kept)} tokens kept"
    )
    run.require(
        len(kept) >= len(shown.decode(errors="ignore")), "a token that was shown is not in the transcript"
    )
    await _chat(run, "broken", [], "--resume")
    run.compare(_transcript(run, "broken"), expected)


async def _do(run: ScenarioRun, act: Callable[..., Any]) -> list[HarnessPeer]:
    """Ask, do one act to the chain, and give its victims."""
    before = set(run.disturbed)
    await run.ask_during(act)
    run.require(run.losses > 0, "no loss was noticed")
    return [peer for peer in run.disturbed if peer not in before]


async def _whole_again(run: ScenarioRun) -> None:
    """Within the time allowed every peer is ready, and in the directory exactly once."""
    started_at = asyncio.get_running_loop().time()
    missing: list[str] = []
    client = await run.join()
    while asyncio.get_running_loop().time() - started_at < WHOLE_WITHIN_S:
        listed = [record.peer for record in (await client.snapshot()).online()]
        missing = [
            peer.name
            for peer in run.harness.everybody
            if listed.count(peer.id) != 1 or not await peer.ready()
        ]
        if not missing and len(listed) == len(run.harness.everybody):
            return
        await asyncio.sleep(0.5)
    run.require(
        False, f"after {WHOLE_WITHIN_S:.0f} s not back, or listed twice: {', '.join(missing) or 'strangers'}"
    )


def _patient(run: ScenarioRun) -> float:
    """How long a loss without a spare may take."""
    return run.harness.config.lease_s + max(1.0, 2 * run.replay_s)


async def _generate(run: ScenarioRun, disturb: Callable[[int], Any] | None = None) -> dict[str, Any]:
    """The reply of a `swarm generate` process, disturbed while it is under way."""
    process = await _client_process(
        run, "generate", CLIENT_PROMPT, "--raw", "--json", "--max-tokens", str(CLIENT_TOKENS)
    )
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            if disturb is not None:
                for span in run.harness.config.spans:
                    await run.harness.until_in_use([peer for peer in run.harness.peers if peer.span == span])
                await disturb(process.pid)
            output, errors = await process.communicate()
    finally:
        await _end(process)
    if process.returncode != 0:
        run.require(False, f"the client ended with status {process.returncode}: {errors.decode().strip()}")
        return {"token_ids": []}
    return dict(json.loads(output))


async def _chat(
    run: ScenarioRun, home: str, lines: Sequence[str], *options: str, kill_after_bytes: int | None = None
) -> bytes:
    """What a `swarm chat` process says to these lines; killed when it has said so much."""
    process = await _client_process(run, "chat", *options, "--max-tokens", str(CLIENT_TOKENS), home=home)
    assert process.stdin is not None  # noqa: S101 - we asked for pipes
    assert process.stdout is not None  # noqa: S101
    said = b""
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            if kill_after_bytes is None:
                process.stdin.close()
            while chunk := await process.stdout.read(kill_after_bytes or -1):
                said += chunk
                if kill_after_bytes is not None and len(said) >= kill_after_bytes:
                    return said
            await process.wait()
            run.require(process.returncode == 0, f"swarm chat ended with status {process.returncode}")
    finally:
        await _end(process)
    return said


def _transcript(run: ScenarioRun, home: str) -> list[int]:
    """The token ids of the one chat that was kept there."""
    [path] = (run.harness.config.home / home).rglob("chats/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [line["id"] for line in lines if line["type"] == "token"]


async def _client_process(
    run: ScenarioRun, command: str, *arguments: str, home: str = "client"
) -> asyncio.subprocess.Process:
    config = run.harness.config
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm", command, config.model, *arguments, *joining([run.harness.join]),
        "--temperature", "0.9", "--seed", str(config.seed), "--lease", f"{config.lease_s}s",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SWARM_HOME": str(config.home / home)},
        start_new_session=True,
    )  # fmt: skip


async def _nap(pid: int) -> None:
    node = NodeProcesses.of(pid)
    node.freeze()
    await asyncio.sleep(NAP_S)
    node.thaw()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()
