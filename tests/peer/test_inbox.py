"""What waits of a stream stays in order, is bounded, and loses what a Rewind makes void."""

import asyncio
import contextlib

import pytest

from swarm.errors import SessionRefused
from swarm.network.channel import Envelope
from swarm.peer.inbox import Inbox
from swarm.wire.messages import Leaving, Message, Rewind, Step

LIMIT = 4


def step(position: int) -> Step:
    return Step(id=position, position=position, tokens=5, reply_tokens=0)


def inbox_of(*messages: Message) -> Inbox:
    inbox = Inbox(LIMIT)
    for message in messages:
        inbox.put(Envelope(message, b""))
    return inbox


async def contents(inbox: Inbox) -> list[Message]:
    """What it gives until it has nothing more."""
    taken = []
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0):
                taken.append((await inbox.get()).message)
    return taken


async def test_messages_come_out_in_the_order_they_came_in():
    assert await contents(inbox_of(step(0), Rewind(position=3), step(3))) == [
        step(0),
        Rewind(position=3),
        step(3),
    ]


async def test_a_message_is_taken_as_soon_as_it_comes():
    inbox = Inbox(LIMIT)
    taking = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(Envelope(step(0), b"rows"))
    assert await taking == (step(0), b"rows", 0)


async def test_one_message_too_many_is_refused():
    inbox = inbox_of(*(step(5 * number) for number in range(LIMIT)))
    with pytest.raises(SessionRefused, match="Too many messages") as refused:
        inbox.put(Envelope(step(100), b""))
    assert refused.value.fault_code == "protocol"


@pytest.mark.parametrize(
    ("waiting", "position", "left"),
    [
        ([step(10)], 10, []),
        ([step(10), step(15)], 12, [step(10)]),  # of the first, two rows stay
        ([Rewind(position=10), step(10)], 10, []),
        ([Rewind(position=8), step(8)], 10, [Rewind(position=8), step(8)]),
        ([Leaving(seconds=1.0)], 0, [Leaving(seconds=1.0)]),  # to be refused in its turn
    ],
)
async def test_a_rewind_takes_the_place_of_what_it_makes_void(waiting, position, left):
    inbox = inbox_of(*waiting, Rewind(position=position))
    assert await contents(inbox) == [*left, Rewind(position=position)]


async def test_a_client_may_give_up_as_many_steps_as_it_likes():
    inbox = inbox_of(*(message for _ in range(50) for message in (step(10), Rewind(position=10))))
    assert await inbox.get() == (Rewind(position=10), b"", 50)
    assert await contents(inbox) == []
