"""The peer's end of a stream: what it accepts, what it refuses and with which words, and what stays of it."""

import asyncio

import pytest
import torch
from peer_scene import HIDDEN, Scene, Stream, rows

from swarm.errors import ChannelClosed
from swarm.peer.handler import LAST_WORD_S, OPEN_TIMEOUT_S
from swarm.wire.frames import MAX_BODY_BYTES, MAX_HEADER_BYTES
from swarm.wire.messages import (
    MAX_STEP_TOKENS,
    WIRE_VERSION,
    Close,
    Fault,
    Leaving,
    Message,
    Opened,
    Output,
    Ping,
    Pong,
    Promote,
    Rewind,
    Step,
)
from swarm.wire.tensors import decode_tensor

OTHER = "f" * 64


async def send_step(stream: Stream, position: int, tokens: int = 1) -> None:
    """Send a step and wait for nothing; its id is its position."""
    step = Step(id=position, position=position, tokens=tokens, reply_tokens=tokens)
    await stream.channel.send(step, bytes(tokens * HIDDEN * 4))


async def answer(stream: Stream) -> Message:
    """The next message that is no beat, however long it takes."""
    while isinstance(message := (await stream.channel.receive()).message, Pong):
        pass
    return message


async def keep_busy(scene: Scene, sessions: int = 1, tokens: int = 1) -> None:
    """Let the steps of so many other sessions run, or wait, before all that is sent from now on."""
    for number in range(sessions):
        await send_step(await scene.session(session=f"busy {number}", max_tokens=256), 0, tokens)
    await asyncio.sleep(0.1)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_session_opens_at_position_zero_with_the_tokens_granted(play):
    async def scene(s):
        return (await (await s.stream()).ask(s.open(max_tokens=10_000)))[0]

    assert play(scene) == Opened(position=0, max_tokens=256, lease_s=2.0)


@pytest.mark.parametrize(
    ("asked", "field", "values"),
    [
        ({"wire_version": WIRE_VERSION + 1}, "wire_version", (WIRE_VERSION, WIRE_VERSION + 1)),
        ({"manifest": OTHER}, "manifest", (OTHER,)),
        ({"dtype": "bf16"}, "dtype", ("fp32", "bf16")),
        ({"quantization": "int8"}, "quantization", ("none", "int8")),
        ({"kernels": "0a1b2c3d4e5f"}, "kernels", ("0a1b2c3d4e5f",)),
        ({"start": 0}, "span", ("1:4", "0:4")),
        ({"end": 5}, "span", ("1:4", "1:5")),
        ({"start": 3, "end": 3}, "span", ("1:4", "3:3")),
        ({"start": 0, "end": 99}, "span", ("1:4", "0:99")),
        ({"codec": "json"}, "codec", ("fp32", "json")),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_field_and_both_values(play, asked, field, values):
    async def scene(s):
        return (await (await s.stream()).ask(s.open(**asked)))[0], s.swarm.model.manifest

    fault, own_manifest = play(scene)
    assert (fault.code, fault.field, fault.retryable) == (field, field, False)
    for value in (*values, *((own_manifest,) if field == "manifest" else ())):
        assert str(value) in fault.text


@pytest.mark.parametrize(
    "asked",
    [
        {"session": ""}, {"session": "x" * 65}, {"max_tokens": 0}, {"epoch": -1}, {"start": -1},
        {"end": 2**40}, {"lease_s": float("nan")}, {"lease_s": float("inf")}, {"lease_s": -1.0},
        {"lease_s": 0.0}, {"trace": "x" * 201}, {"dtype": "fp32\n"},
    ],
    ids=str,
)  # fmt: skip
def test_an_open_with_a_field_out_of_range_is_refused(play, asked):
    async def scene(s):
        return (await (await s.stream()).ask(s.open(**asked)))[0]

    fault = play(scene)
    assert (fault.code, fault.retryable) == ("malformed_message", False)
    assert next(iter(asked)) in fault.text


def test_a_stream_that_begins_with_anything_but_open_is_refused(play):
    async def scene(s):
        return (await (await s.stream()).ask(Rewind(position=0)))[0]

    assert play(scene) == Fault(
        code="protocol", text="A stream begins with Open.", retryable=False, field="type"
    )


def test_a_stream_that_says_nothing_is_closed(play):
    async def scene(s):
        stream = await s.stream()
        with pytest.raises(ChannelClosed):
            await stream.channel.receive()
        return asyncio.get_running_loop().time()

    assert play(scene) == pytest.approx(OPEN_TIMEOUT_S, abs=0.1)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ((MAX_HEADER_BYTES + 1).to_bytes(4, "little") + bytes(4), "frame_too_large"),
        ((16).to_bytes(4, "little") + (MAX_BODY_BYTES + 1).to_bytes(4, "little"), "frame_too_large"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame_too_large"),
        (bytes(8), "malformed_message"),
        ((4).to_bytes(4, "little") + bytes(4) + b"\xff\xfe\xfd\xfc", "malformed_message"),
    ],
)
@pytest.mark.parametrize("after_open", [False, True], ids=["at first", "in a session"])
def test_bytes_that_are_no_frame_or_too_large_a_one_are_refused_before_they_are_read(
    play, sent, code, after_open
):
    async def scene(s):
        stream = await (s.session() if after_open else s.stream())
        stream.channel._writer.write(sent)
        fault, _ = await stream.channel.receive()
        with pytest.raises(ChannelClosed):
            await stream.channel.receive()
        return fault, s.hosted.peer.handler.open_streams

    fault, open_streams = play(scene)
    assert (fault.code, open_streams) == (code, 0)


def test_a_step_gives_what_the_blocks_give_and_moves_the_position(play):
    async def scene(s):
        stream = await s.session()
        whole, body = await stream.push(1, 0, rows(5))
        other = await s.session(session="other")
        await other.push(1, 0, rows(4), reply_tokens=0)
        last, last_body = await other.push(2, 4, rows(5)[4:], reply_tokens=1)
        return (whole.position, whole.tokens, last.position, last.tokens), body, last_body

    where, body, last_body = play(scene)
    assert where == (0, 5, 4, 1)
    whole, last = decode_tensor(body, 5, HIDDEN, "fp32"), decode_tensor(last_body, 1, HIDDEN, "fp32")
    assert torch.allclose(whole[4:], last, atol=1e-5)


def test_only_the_rows_asked_for_come_back(play):
    async def scene(s):
        output, body = await (await s.session()).push(1, 0, rows(5), reply_tokens=2)
        return output.position, output.tokens, len(body)

    assert play(scene) == (3, 2, 2 * HIDDEN * 4)


def test_a_step_at_a_wrong_position_is_told_the_right_one(play):
    async def scene(s):
        stream = await s.session()
        await stream.push(1, 0, rows(5))
        return (await stream.push(2, 3, rows(1)))[0]

    fault = play(scene)
    assert (fault.code, fault.expected_position, fault.retryable) == ("position", 5, True)
    assert fault.text == "The step is at position 3, the session at 5."


def test_a_repeated_step_is_told_where_the_session_stands(play):
    async def scene(s):
        stream = await s.session()
        await stream.push(1, 0, rows(5))
        return (await stream.push(1, 0, rows(5)))[0].expected_position

    assert play(scene) == 5


@pytest.mark.parametrize(
    ("step", "body_bytes", "code"),
    [
        ({"tokens": 2}, HIDDEN * 4, "malformed_message"),
        ({"tokens": 0, "reply_tokens": 0}, 0, "malformed_message"),
        ({"tokens": -1, "reply_tokens": 0}, 0, "malformed_message"),
        ({"reply_tokens": 2}, HIDDEN * 4, "protocol"),
        ({"tokens": MAX_STEP_TOKENS + 1}, HIDDEN * 4, "malformed_message"),
        ({"tokens": MAX_STEP_TOKENS + 1}, (MAX_STEP_TOKENS + 1) * HIDDEN * 4, "frame_too_large"),
        ({"tokens": 65}, 65 * HIDDEN * 4, "context_length_exceeded"),
    ],
)
def test_a_step_that_is_not_what_it_says_is_refused_and_leaves_the_session_where_it_was(
    play, step, body_bytes, code
):
    async def scene(s):
        stream = await s.session()
        sent = Step(**({"id": 1, "position": 0, "tokens": 1, "reply_tokens": 1} | step))
        fault, _ = await stream.ask(sent, bytes(body_bytes))
        return fault.code, s.hosted.peer.sessions.all()[0].position

    assert play(scene) == (code, 0)


def test_a_rewound_session_goes_on_from_there(play):
    async def scene(s):
        stream = await s.session()
        await stream.push(1, 0, rows(5))
        _, straight = await stream.push(2, 5, rows(1, seed=1))
        await stream.channel.send(Rewind(position=5))
        _, again = await stream.push(3, 5, rows(1, seed=1))
        await stream.channel.send(Rewind(position=7))
        return straight == again, (await stream.channel.receive()).message

    same, fault = play(scene)
    assert same
    assert (fault.code, fault.expected_position) == ("position", 6)


def test_a_ping_is_answered_while_a_step_is_out(play):
    async def scene(s):
        stream = await s.session(lease_s=30.0)
        pushing = asyncio.create_task(stream.push(1, 0, rows(1)))
        await asyncio.sleep(1)
        await stream.channel.send(Ping(id=7))
        return (await pushing).message, asyncio.get_running_loop().time()

    answer, answered_at = play(scene, cost_s=5.0)
    assert answer == Pong(id=7, queue_depth=1)
    assert answered_at < 2


def test_the_peer_beats_four_times_a_lease_while_a_step_is_out(play):
    async def scene(s):
        stream = await s.session(lease_s=2.0)
        answers = [(await stream.push(1, 0, rows(1))).message]
        while not isinstance(answers[-1], Output):
            answers.append((await stream.channel.receive()).message)
        return answers

    answers = play(scene, cost_s=4.2)
    assert answers[:-1] == [Pong(id=-1, queue_depth=1)] * 8


def test_a_client_that_sends_on_without_reading_is_cut_off(play):
    async def scene(s):
        stream = await s.session()
        for position in range(20):
            step = Step(id=position, position=position, tokens=1, reply_tokens=1)
            await stream.channel.send(step, bytes(HIDDEN * 4))
        while True:
            message, _ = await stream.channel.receive()
            if isinstance(message, Fault):
                return message.code

    assert play(scene, cost_s=1.0) == "protocol"


def test_a_client_that_gives_up_step_after_step_is_not_cut_off(play):
    async def scene(s):
        stream = await s.session()
        await send_step(stream, 0, tokens=5)
        await answer(stream)
        await keep_busy(s)
        for _ in range(20):
            await send_step(stream, 5)
            await stream.channel.send(Rewind(position=5))
        await send_step(stream, 5, tokens=3)
        given = await answer(stream)
        session = s.hosted.peer.sessions.all()[0]
        return given.tokens, session.position, session.rewinds

    assert play(scene, cost_s=1.0) == (3, 8, 20)


def test_a_rewind_ends_the_step_that_it_makes_void(play):
    async def scene(s):
        stream = await s.session(max_tokens=256)
        await send_step(stream, 0, tokens=250)  # in two slices
        await asyncio.sleep(0.5)
        await stream.channel.send(Rewind(position=0))
        await send_step(stream, 0, tokens=3)
        given = await answer(stream)
        return given.tokens, now(), s.hosted.peer.sessions.all()[0].position

    assert play(scene, cost_s=1.0) == (3, 2.0, 3)


def test_the_peer_beats_while_a_step_that_was_given_up_runs_to_its_end(play):
    async def scene(s):
        stream = await s.session(lease_s=1.0)
        await send_step(stream, 0)
        await asyncio.sleep(0.1)
        await stream.channel.send(Rewind(position=0))
        await send_step(stream, 0)
        heard, longest_s = now(), 0.0
        while not isinstance((await stream.channel.receive()).message, Output):
            heard, longest_s = now(), max(longest_s, now() - heard)
        return longest_s

    assert play(scene, cost_s=5.0) <= 0.5  # between two steps a beat is left out


@pytest.mark.parametrize("busy", [1, 3])
def test_a_promotion_does_not_wait_behind_the_last_step_of_the_spare(play, busy):
    async def scene(s):
        stream = await s.session(role="spare", max_tokens=256)
        await keep_busy(s, sessions=busy, tokens=250)
        await send_step(stream, 0, tokens=30)
        await asyncio.sleep(0.1)
        promoted_at = now()
        await stream.channel.send(Promote())
        await stream.channel.send(Rewind(position=0))
        await send_step(stream, 0)
        answered = type(await answer(stream))
        return answered, now() - promoted_at, s.hosted.peer.handler.active_streams

    answered, took_s, active = play(scene, cost_s=1.0)
    assert (answered, active) == (Output, busy + 1)
    assert took_s <= 2.0  # the batch that runs, and the next one


def test_the_last_step_of_a_spare_that_is_promoted_takes_its_turn_with_the_others(play):
    async def scene(s):
        stream = await s.session(role="spare")
        await keep_busy(s, sessions=3, tokens=250)
        await send_step(stream, 0)
        await asyncio.sleep(0.1)
        await stream.channel.send(Promote())
        await answer(stream)
        return now()

    assert play(scene, cost_s=1.0) <= 2.0


def test_a_message_that_is_not_for_a_peer_is_refused(play):
    async def scene(s):
        return (await (await s.session()).ask(Leaving(seconds=1.0)))[0]

    assert play(scene).text == "Leaving is not for a peer."


def test_close_frees_the_session_and_ends_the_stream(play):
    async def scene(s):
        stream = await s.session()
        await stream.push(1, 0, rows(5))
        await stream.channel.send(Close())
        with pytest.raises(ChannelClosed):
            await stream.channel.receive()
        return len(s.hosted.peer.sessions), s.hosted.peer.sessions.used_bytes

    assert play(scene) == (0, 0)


def test_a_session_whose_stream_broke_is_taken_up_at_its_position(play):
    async def scene(s):
        stream = await s.session()
        await stream.push(1, 0, rows(5))
        stream.channel.close()
        await asyncio.sleep(1)
        return (await (await s.stream()).ask(s.open(epoch=1)))[0].position

    assert play(scene) == 5


def test_a_later_take_fences_the_earlier_one_off(play):
    async def scene(s):
        earlier = await s.session(epoch=1)
        later = await s.session(epoch=2)
        refused, _ = await (await s.stream()).ask(s.open(epoch=1))
        cut, _ = await earlier.push(1, 0, rows(1))
        answer, _ = await later.push(1, 0, rows(1))
        return refused.code, cut.code, type(answer)

    assert play(scene) == ("fenced", "fenced", Output)


@pytest.mark.parametrize("fields", [{}, {"end": 3}], ids=["the same span", "another span"])
def test_a_later_take_ends_the_earlier_one_and_what_it_sent_ahead(play, fields):
    async def scene(s):
        earlier = await s.session()
        await send_step(earlier, 0)
        await send_step(earlier, 1)
        await asyncio.sleep(0.1)
        await keep_busy(s)
        later = await s.stream()
        await later.send(s.open(epoch=1, **fields))
        refused, refused_at = await answer(earlier), now()
        with pytest.raises(ChannelClosed):
            await earlier.channel.receive()
        position = (await answer(later)).position
        await send_step(later, position)
        given = await answer(later)
        held = {session.id: session.position for session in s.hosted.peer.sessions.all()}
        return refused.code, refused_at, given.position - position, held["s"] - position

    assert play(scene, cost_s=1.0) == ("fenced", pytest.approx(0.2), 0, 1)


@pytest.mark.parametrize("turns", range(6))
def test_a_later_take_that_comes_just_as_a_step_ends_lets_nothing_follow_it(play, turns):
    async def scene(s):
        earlier, later = await s.session(lease_s=30.0), await s.stream()
        await send_step(earlier, 0)
        await send_step(earlier, 1)
        await asyncio.sleep(1.0)
        for _ in range(turns):  # of the loop
            await asyncio.sleep(0)
        await later.send(s.open(epoch=1))
        position = (await answer(later)).position
        await asyncio.sleep(5)
        return s.hosted.peer.sessions.all()[0].position - position

    assert play(scene, cost_s=1.0) == 0


def test_an_earlier_take_that_comes_late_disturbs_nothing(play):
    async def scene(s):
        await keep_busy(s)
        later = await s.session(epoch=5)
        await send_step(later, 0)
        await asyncio.sleep(0.1)
        late, _ = await (await s.stream()).ask(s.open(epoch=4))
        return late.code, type(await answer(later)), now()

    assert play(scene, cost_s=1.0) == ("fenced", Output, 2.0)


def test_a_take_that_is_fenced_off_while_it_waits_to_open_is_told_so(play):
    async def scene(s):
        first = await s.session()
        await send_step(first, 0)
        await asyncio.sleep(0.1)
        takes = [await s.stream() for _ in range(2)]
        for epoch, take in enumerate(takes, start=1):
            await take.send(s.open(epoch=epoch))
            await asyncio.sleep(0.1)
        return [type(await answer(take)) for take in takes], s.hosted.peer.sessions.all()[0].attached

    assert play(scene, cost_s=1.0) == ([Fault, Opened], True)


def test_an_earlier_take_whose_client_takes_nothing_in_is_cut_all_the_same(play):
    async def scene(s):
        await s.session()
        [stuck] = s.hosted.peer.handler._streams
        await stuck.channel._sending.acquire()
        await s.session(epoch=1)
        await asyncio.sleep(LAST_WORD_S + 0.1)
        return stuck.channel._closed, s.hosted.peer.handler.open_streams

    assert play(scene) == (True, 1)


def test_a_session_that_nobody_heard_opened_is_given_up_like_one_whose_stream_broke(play):
    async def scene(s):
        earlier = await s.session()
        await send_step(earlier, 0)
        await asyncio.sleep(0.1)
        later = await s.stream()
        await later.send(s.open(epoch=1))  # waits for what runs of the session
        await asyncio.sleep(0.1)
        later.channel.close()
        await asyncio.sleep(10)
        [session] = s.hosted.peer.sessions.all()
        return session.epoch, session.attached

    assert play(scene, cost_s=5.0) == (1, False)


def test_an_earlier_take_cannot_close_the_session_while_a_later_one_waits_to_open(play):
    async def scene(s):
        earlier, later = await s.session(), await s.stream()
        await send_step(earlier, 0)
        await asyncio.sleep(0.1)
        await later.send(s.open(epoch=1))
        await earlier.channel.send(Close())
        opened = await answer(later)
        await asyncio.sleep(1)
        return opened.position, len(s.hosted.peer.sessions)

    assert play(scene, cost_s=1.0) == (1, 1)


def test_a_leaving_peer_says_so_and_takes_no_new_session(play):
    async def scene(s):
        stream = await s.session()
        s.hosted.peer.handler.leave(30.0)
        told, _ = await stream.channel.receive()
        refused, _ = await (await s.stream()).ask(s.open(session="new"))
        answer, _ = await stream.push(1, 0, rows(1))
        return told, (refused.code, refused.retryable), type(answer)

    assert play(scene) == (Leaving(seconds=30.0), ("draining", True), Output)


def test_a_client_that_was_let_in_just_before_the_leave_is_told_of_it_too(play):
    async def scene(s):
        earlier = await s.session()
        await earlier.channel.send(Step(id=1, position=0, tokens=1, reply_tokens=1), bytes(HIDDEN * 4))
        await asyncio.sleep(1)
        later = await s.stream()
        await later.send(s.open(epoch=1))  # waits for what runs of the session
        await asyncio.sleep(1)
        s.hosted.peer.handler.leave(30.0)
        return [(await later.channel.receive()).message for _ in range(2)]

    opened, told = play(scene, cost_s=5.0)
    assert isinstance(opened, Opened)
    assert isinstance(told, Leaving)
    assert 25 < told.seconds < 30


def test_a_peer_that_stays_after_all_tells_nobody_who_comes_then(play):
    async def scene(s):
        s.hosted.peer.handler.leave(30.0)
        s.hosted.peer.handler.stay()
        stream = await s.session()
        return type((await stream.ask(Ping(id=1)))[0])

    assert play(scene) is Pong
