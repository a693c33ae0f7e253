"""Commands against a small live swarm: refusals, hostile streams, and how signals end them."""

import asyncio
import contextlib
import json
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.errors import ChannelClosed
from swarm.network.libp2p import Libp2pConfig, open_libp2p
from swarm.network.transport import Network
from swarm.security.identity import new_identity
from swarm.security.manifest import load_manifest
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, SwarmProcess
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import PeerId, Span
from swarm.wire.frames import MAX_BODY_BYTES
from swarm.wire.messages import SESSION_PROTOCOL, Fault

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@dataclass(frozen=True, slots=True)
class Live:
    """A swarm that hosts the whole of `tiny`, and blocks 0:2 of `holed`."""

    tiny: str
    holed: str
    address: str
    peer: str  # that hosts `tiny`
    monitor: str  # its page

    @property
    def join(self) -> tuple[str, str]:
        return ("--join", self.address)

    def wait_for_no_sessions(self) -> None:
        """Return when the peer's own page says that it holds none; fail after a while."""
        deadline = time.monotonic() + 60
        while self._sessions() > 0:
            assert time.monotonic() < deadline, "the peer still holds a session"
            time.sleep(0.1)

    def _sessions(self) -> float:
        with urllib.request.urlopen(f"{self.monitor}/metrics") as page:  # noqa: S310 - a page of our own
            lines = page.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("swarm_sessions ")))


@pytest.fixture(scope="module")
def live(tiny, module_mark, background, tmp_path_factory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("keys")
    write_tiny_model(home / "holed", TinyModel(num_blocks=6, seed=2))
    stack = contextlib.AsyncExitStack()

    async def start() -> Live:
        swarm = await stack.enter_async_context(LocalSwarm(LocalSwarmConfig(tiny, [Span(0, 6)], str(home))))
        holder = await SwarmProcess.start(
            "peer", str(home / "holed"), "--blocks", "0:2", "--join", swarm.join, "--listen", "127.0.0.1:0",
            "--threads", "1", "--identity", str(home / "holed.key"),
        )  # fmt: skip
        stack.push_async_callback(holder.stop)
        await holder.wait_for("online")
        joined = await swarm.peers[0].wait_for("joined")
        return Live(tiny, str(home / "holed"), swarm.join, joined["peer"], joined["monitor"])

    try:
        yield background.run(start())
    finally:
        background.run(stack.aclose())


def test_a_reply_can_be_had_as_json(live, command):
    code, out, err = command("generate", live.tiny, "hello", *live.join, "--max-tokens", "4", "--json")
    assert (code, err) == (0, "")
    reply = json.loads(out)
    assert reply["completion_tokens"] == len(reply["token_ids"]) <= 4
    assert [hop["blocks"] for hop in reply["hops"]] == ["0:6"]


def test_a_hole_is_named_with_what_would_fill_it(live, command):
    code, out, err = command("generate", live.holed, "hello", *live.join, "--patience", "1s")
    assert (code, out) == (69, "")
    assert err.splitlines()[0] == "Waiting: No live peer hosts blocks 2:6."
    assert err.splitlines()[-1] == (
        "swarm: No live peer hosts blocks 2:6. "
        "Start one (swarm peer MODEL --blocks 2:6 --join ADDR), or wait longer."
    )


def test_the_same_name_with_other_weights_is_refused_naming_both_digests(live, command, tmp_path):
    mine = tmp_path / Path(live.tiny).name
    write_tiny_model(mine, TinyModel(num_blocks=6, seed=9))
    code, out, err = command("generate", str(mine), "hello", *live.join)
    assert (code, out) == (1, "")
    hosted, own = (load_manifest(Path(path)).digest for path in (live.tiny, mine))
    assert f"The swarm hosts another tiny: its manifest is {hosted}, yours is {own}." in err


def test_numerics_that_the_swarm_does_not_have_are_named(live, command):
    code, _, err = command("generate", live.tiny, "hello", *live.join, "--patience", "0s", "--dtype", "bf16")
    assert code == 69
    assert "No live peer hosts blocks 0:6 in bf16 (others compute in fp32)." in err


def test_a_prompt_longer_than_the_context_says_both_lengths(live, command):
    code, out, err = command("generate", live.tiny, "x" * 600, *live.join, "--raw")
    assert (code, out) == (2, "")
    assert err == (
        "swarm: The prompt has 600 tokens; the model's context holds 512. "
        "Shorten the prompt or ask for fewer tokens.\n"
    )


def test_a_model_that_the_swarm_does_not_host_is_answered_with_those_it_does(live, command):
    code, _, err = command("status", "other", *live.join)
    assert (code, err) == (1, "swarm: The swarm hosts no model 'other'. It hosts: holed, tiny.\n")


def test_a_peer_outlives_random_bytes_and_frames_over_the_limit(live, command, background):
    chance = random.Random(7)  # noqa: S311 - the same bytes every time
    heads = [(2**32 - 1, 0), (16, MAX_BODY_BYTES + 1), (0, 0)]
    blobs = [header.to_bytes(4, "little") + body.to_bytes(4, "little") + bytes(64) for header, body in heads]
    blobs += [chance.randbytes(chance.randrange(1, 4000)) for _ in range(60)]

    async def send_all() -> list[Fault | None]:
        async with open_libp2p(Libp2pConfig(join=(live.address,), client=True), new_identity()) as network:
            return [await _answer_to(blob, network, PeerId(live.peer)) for blob in blobs]

    answers = background.run(send_all())
    assert [answer.code for answer in answers[:3]] == [
        "frame_too_large",
        "frame_too_large",
        "malformed_message",
    ]
    assert {answer.code for answer in answers if answer} == {"frame_too_large", "malformed_message"}
    code, _, err = command("generate", live.tiny, "hello", *live.join, "--max-tokens", "2")
    assert (code, err) == (0, "")
    live.wait_for_no_sessions()


async def _answer_to(blob: bytes, network: Network, peer: PeerId) -> Fault | None:
    """The fault that a peer answers bytes with; None when it still waits for more of them."""
    channel = await network.open_channel(peer, SESSION_PROTOCOL, 30.0)
    try:
        channel._writer.write(blob)
        async with asyncio.timeout(60.0 if len(blob) > 8 else 0.1):
            return (await channel.receive()).message
    except (TimeoutError, ChannelClosed):
        return None
    finally:
        channel.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_reply_that_is_interrupted_leaves_no_session(live, mark, number, status):
    process = mark.start("generate", live.tiny, "hello", *live.join, "--raw", "--max-tokens", "500")
    with process:
        process.stdout.read(1)  # it has begun
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in err
    live.wait_for_no_sessions()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_chat_that_waits_for_a_line_ends_by_a_signal(live, mark, number, status):
    process = mark.start("chat", live.tiny, *live.join, "--max-tokens", "2", stdin=-1)
    with process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        process.stdout.read(1)
        time.sleep(1.0)
        process.send_signal(number)
        assert process.wait(100) == status
    live.wait_for_no_sessions()


def test_a_chat_ends_with_its_input(live, mark):
    process = mark.start("chat", live.tiny, *live.join, "--max-tokens", "2", stdin=-1)
    with process:
        out, err = process.communicate("hello\n/stats\n")
    assert process.returncode == 0
    assert out.strip()
    assert "2 tokens after a prompt of" in err
    live.wait_for_no_sessions()


@pytest.mark.parametrize("wait_s", [0.5, 2.5])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_peer_that_is_still_starting_ends_by_a_signal(mark, tiny, wait_s, number):
    with mark.start("peer", tiny, "--listen", "127.0.0.1:0") as process:
        time.sleep(wait_s)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode in (0, 128 + number, -number)
    assert "Traceback" not in err


def test_an_online_peer_withdraws_and_ends_by_sigterm(live, mark, command):
    with mark.start("peer", live.tiny, "--listen", "127.0.0.1:0", *live.join, "--json") as process:
        events = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [event["event"] for event in events] == ["joined", "reach", "online"]
        assert events[0]["peer"] in _online(live, command)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert _online(live, command) == {live.peer}


def _online(live: Live, command) -> set[str]:
    _, out, _ = command("status", "tiny", *live.join, "--json")
    (model,) = json.loads(out)["models"]
    return {peer["peer"] for peer in model["peers"] if peer["state"] == "online"}


def test_a_peer_that_cannot_load_what_it_promised_takes_its_word_back(live, mark, command, tmp_path):
    broken = tmp_path / Path(live.tiny).name
    write_tiny_model(broken, TinyModel(num_blocks=6, overrides={"max_position_embeddings": 512}))
    assert command("model", "manifest", str(broken))[0] == 0
    weights = broken / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2000:] = bytes(2000)  # of the last tensor in the file
    weights.write_bytes(content)
    with mark.start("peer", str(broken), "--listen", "127.0.0.1:0", *live.join) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert "where the manifest names" in err
    _, out, _ = command("status", "tiny", *live.join, "--json")
    (model,) = json.loads(out)["models"]
    assert "joining" not in {peer["state"] for peer in model["peers"]}


def test_a_bootstrap_node_ends_by_sigterm_and_keeps_its_name(mark):
    names = []
    for _ in range(2):
        with mark.start("bootstrap", "--listen", "127.0.0.1:0", "--json") as process:
            names.append(json.loads(process.stdout.readline())["peer"])
            process.send_signal(signal.SIGTERM)
            process.communicate()
        assert process.returncode == 0
    assert names[0] == names[1]
