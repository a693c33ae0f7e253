"""`swarm demo` as a stranger runs it: the right answer, and nothing left, whatever ends it."""

import json
import os
import signal
import time

import psutil
import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

FRANCE = [504, 3575, 282, 4649, 314, 7042, 30, 2]


def ask(model: str, *options: str) -> list[str]:
    return ["demo", "--model", model, "--json", *options]


@pytest.mark.model
def test_the_demo_gives_the_right_tokens_over_three_hops_and_leaves_no_process(mark, smollm2):
    with mark.start(*ask(str(smollm2), "--prompt", "What is the capital of France?")) as demo:
        printed, told = demo.communicate(timeout=100)
    assert demo.returncode == 0, told
    reply = json.loads(printed)
    assert reply["token_ids"] == FRANCE
    assert reply["text"] == "The capital of France is Paris."
    assert [hop["blocks"] for hop in reply["hops"]] == ["0:10", "10:20", "20:30"]
    assert reply["finish_reason"] == "stop"
    mark.assert_nothing_left()


@pytest.mark.parametrize("wait_s", [0.3, 3.0])
def test_sigterm_ends_a_demo_that_is_still_starting(mark, tiny, wait_s):
    with mark.start(*ask(tiny)) as demo:
        time.sleep(wait_s)
        demo.send_signal(signal.SIGTERM)
        _, told = demo.communicate(timeout=100)
    assert demo.returncode in (143, -signal.SIGTERM)
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_demo_that_serves_takes_its_processes_with_it(mark, tiny, number, status):
    with mark.start(*ask(tiny, "--serve", "--peers", "1", "--max-tokens", "3")) as demo:
        assert json.loads(demo.stdout.readline())["join"].startswith("/ip4/127.0.0.1/")
        assert len(json.loads(demo.stdout.readline())["token_ids"]) <= 3
        assert len(mark.living()) >= 3  # itself, a bootstrap node and a peer
        demo.send_signal(number)
        _, told = demo.communicate(timeout=100)
    assert demo.returncode == status
    assert "Traceback" not in told
    assert not os.listdir(mark.scratch) or number == signal.SIGKILL


def test_a_demo_that_serves_tells_when_a_peer_of_it_ends(mark, tiny):
    with mark.start(*ask(tiny, "--serve", "--peers", "1", "--max-tokens", "3")) as demo:
        demo.stdout.readline(), demo.stdout.readline()  # the addresses and the reply
        [peer] = [child for child in psutil.Process(demo.pid).children() if "--blocks" in child.cmdline()]
        peer.kill()
        assert any("The peer of blocks 0:6 has ended by SIGKILL" in line for line in demo.stderr)
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=100)


def test_more_peers_than_blocks_are_refused(mark, tiny):
    with mark.start(*ask(tiny, "--peers", "7")) as demo:
        printed, told = demo.communicate(timeout=100)
    assert (demo.returncode, printed) == (2, "")
    assert told == "swarm: 7 peers cannot share 6 blocks. Use --peers 6 or fewer.\n"
