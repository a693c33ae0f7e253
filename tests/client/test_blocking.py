"""The client for code without an event loop."""

import os
import signal
import threading
from collections.abc import Callable

import pytest

from swarm.client.blocking import BlockingClient
from swarm.client.client import Client, ClientOptions
from swarm.errors import RequestError
from swarm.testing.swarm import InProcessSwarm
from swarm.values import Span

LIMITS = {"max_tokens": 4, "stop_token_ids": frozenset()}


@pytest.fixture
def open_blocking(tiny_directory, monkeypatch) -> Callable[..., BlockingClient]:
    """Opens a client of a swarm on the memory network, in the client's own loop; a peer of it may sleep."""

    def open_one(*, asleep: bool = False) -> BlockingClient:
        async def open_in_process(model, *, join, options):
            swarm = InProcessSwarm(tiny_directory)
            sleeper, _ = await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(options)
            close = client.close

            async def close_all():
                await close()
                for peer in swarm.peers:
                    await peer.kill()

            client.close = close_all
            if asleep:
                swarm.net.freeze(sleeper.id)
            return client

        monkeypatch.setattr(Client, "open", open_in_process)
        return BlockingClient("tiny", join=[], options=ClientOptions(open_timeout_s=60.0))

    return open_one


def test_a_reply_comes_whole_or_piece_by_piece(open_blocking):
    with open_blocking() as client:
        reply = client.generate("Hello", **LIMITS)
        pieces = list(client.stream("Hello", **LIMITS))
    assert [piece.token_id for piece in pieces] == list(reply.token_ids)


def test_an_error_in_the_loop_is_raised_to_the_caller(open_blocking):
    with open_blocking() as client, pytest.raises(RequestError, match="5000"):
        client.generate([72, 5000], **LIMITS)


def test_a_stream_that_is_interrupted_raises_just_that(open_blocking):
    def ask_and_interrupt(client):
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        list(client.stream("Hello", **LIMITS))

    # in the middle of opening a chain, which has to be undone
    with open_blocking(asleep=True) as client, pytest.raises(KeyboardInterrupt):
        ask_and_interrupt(client)
