"""A conversation goes on in a later process: from what the peers still hold, or rebuilt."""

import asyncio
import dataclasses

import msgspec
import pytest

from swarm.client.chat import ConversationState, UnfinishedReply
from swarm.client.client import ClientOptions
from swarm.client.generation import Request
from swarm.client.transcript import Begin, End, Token, Transcript, Turn, read_transcript
from swarm.errors import BrokenTranscript, ManifestMismatch
from swarm.model.compute import InlineCompute
from swarm.model.sampling import Sampling
from swarm.testing.clock import run_virtual
from swarm.values import Span

OPTIONS = {"max_tokens": 30, "stop_token_ids": frozenset()}
NO_SPARES = ClientOptions(spares="off")


async def interrupted(swarm, at_token: int, options=OPTIONS) -> tuple[list[int], ConversationState]:
    """The first tokens of a reply whose client then dies, and its state as it was kept."""
    client = swarm.client(NO_SPARES)
    conversation = client.conversation()
    generation, ids, state = conversation.say("Hello", **options), [], None
    async for piece in generation:
        ids.append(piece.token_id)
        if len(ids) == at_token:
            state = conversation.state()
            break
    await client.network.close()  # as a killed process: its streams break
    return ids, ConversationState.from_bytes(state.to_bytes())


def in_two_processes(virtual_swarm, between, options=OPTIONS):
    """A reply interrupted after ten tokens and resumed; gives its ids, and the rows sent again."""

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            first_ids, state = await interrupted(swarm, 10, options)
            await asyncio.sleep(0.5)
            await between(swarm)
            conversation = await swarm.client(NO_SPARES).resume(state)
            generation = conversation.go_on(state.unfinished)
            later_ids = [piece.token_id async for piece in generation]
            sent = max(hop.stats.tokens for hop in conversation.context.session.hops) - len(later_ids)
            prompt = list(state.unfinished.prompt_ids)
            assert conversation.messages[-1]["content"] == generation.reply.text
            await conversation.close()
            return prompt, first_ids + later_ids, list(generation.reply.token_ids), sent

    return run_virtual(run())


async def nothing(swarm):
    pass


def test_what_the_peers_still_hold_is_not_computed_again(virtual_swarm, reference):
    prompt, ids, reply_ids, sent_again = in_two_processes(virtual_swarm, nothing)
    assert ids == reply_ids == reference.reply(prompt, 30)
    assert sent_again <= 1


def test_a_session_that_one_peer_has_lost_is_rebuilt(virtual_swarm, reference):
    async def restart_one(swarm):
        await swarm.peers[1].kill()
        await swarm.add_peer(Span(3, 6))

    prompt, ids, reply_ids, sent_again = in_two_processes(virtual_swarm, restart_one)
    assert ids == reply_ids == reference.reply(prompt, 30)
    assert sent_again > len(prompt)


@pytest.mark.parametrize("ends_by", ["leave", "close"])
def test_the_peers_keep_a_session_that_was_left_and_not_one_that_was_closed(
    virtual_swarm, reference, ends_by
):
    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            conversation = swarm.client(NO_SPARES).conversation()
            await conversation.say("Hello", **OPTIONS)
            state = conversation.state()
            await (conversation.leave() if ends_by == "leave" else conversation.close())
            await asyncio.sleep(1)
            conversation = await swarm.client(NO_SPARES).resume(state)
            held, known = conversation.context.session.position, len(state.ids)
            generation = conversation.say("And?", **OPTIONS)
            ids = [piece.token_id async for piece in generation]
            await conversation.close()
            return held, known, generation.request.prompt_ids, ids

    held, known, prompt, ids = run_virtual(run())
    assert held == (known - 1 if ends_by == "leave" else 0)
    assert ids == reference.reply(prompt, 30)


def test_a_session_nobody_claims_is_given_up_after_a_while(virtual_swarm, reference):
    held = []

    async def wait(swarm):
        held.append([len(peer.peer.sessions) for peer in swarm.peers])
        await asyncio.sleep(300)
        held.append([len(peer.peer.sessions) for peer in swarm.peers])

    prompt, ids, _, _ = in_two_processes(virtual_swarm, wait)
    assert held == [[1, 1], [0, 0]]
    assert ids == reference.reply(prompt, 30)


def test_a_peer_lost_after_the_resume_is_replaced_although_its_history_is_gone(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            first_ids, state = await interrupted(swarm, 10)
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            conversation = await swarm.client(NO_SPARES).resume(state)
            ids = []
            async for piece in conversation.go_on(state.unfinished):
                ids.append(piece.token_id)
                if len(ids) == 5:
                    await swarm.peers[1].kill()
            await conversation.close()
            return list(state.unfinished.prompt_ids), first_ids + ids

    prompt, ids = run_virtual(run())
    assert ids == reference.reply(prompt, 30)


def test_sampling_goes_on_with_the_same_seed(virtual_swarm, reference):
    sampling = Sampling(temperature=1.0, seed=3)
    prompt, ids, _, _ = in_two_processes(virtual_swarm, nothing, OPTIONS | {"sampling": sampling})
    assert ids == reference.reply(prompt, 30, sampling)


def undisturbed(virtual_swarm, options):
    """The reply that `in_two_processes` interrupts."""

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            conversation = swarm.client(NO_SPARES).conversation()
            reply = await conversation.say("Hello", **options)
            await conversation.close()
            return reply

    return run_virtual(run())


def test_what_says_when_a_reply_ends_still_holds_after_the_resume(virtual_swarm):
    free = undisturbed(virtual_swarm, OPTIONS)
    stops = OPTIONS | {"stop_token_ids": frozenset({free.token_ids[15]})}
    assert len(undisturbed(virtual_swarm, stops).token_ids) == 16
    options = stops | {"min_tokens": 25}
    whole = undisturbed(virtual_swarm, options)
    assert len(whole.token_ids) >= 25
    _, _, resumed, _ = in_two_processes(virtual_swarm, nothing, options)
    assert tuple(resumed) == whole.token_ids


def test_a_reply_whose_last_token_is_there_is_complete_without_a_step(virtual_swarm):
    async def run():
        async with virtual_swarm() as swarm:  # with nobody to ask
            conversation = swarm.client(NO_SPARES).conversation()
            generation = conversation.say("Hello", max_tokens=3, stop_token_ids=frozenset())
            asked = conversation.state().unfinished
            await generation.aclose()
            again = conversation.go_on(msgspec.structs.replace(asked, output_ids=(65, 66, 67)))
            pieces = [piece async for piece in again]
            return pieces, again.reply, conversation.messages, conversation.state().unfinished

    pieces, reply, messages, unfinished = run_virtual(run())
    assert (pieces, reply.token_ids, reply.finish_reason) == ([], (65, 66, 67), "length")
    assert [message["content"] for message in messages] == ["Hello", reply.text]
    assert unfinished is None


def test_an_interrupted_reply_keeps_all_that_was_asked_for(virtual_swarm):
    kept = {field.name for field in dataclasses.fields(Request)} - {"allowed"}  # a function is no data
    assert kept <= set(UnfinishedReply.__struct_fields__)
    asked = {
        "max_tokens": 30,
        "min_tokens": 2,
        "stop": ("END",),
        "stop_token_ids": frozenset({3}),
        "include_stop": True,
        "skip_special_tokens": False,
        "top_logprobs": 4,
        "sampling": Sampling(temperature=0.5, seed=7),
    }

    async def run():
        async with virtual_swarm() as swarm:
            conversation = swarm.client().conversation()
            first = conversation.say("Hello", **asked)
            saved = ConversationState.from_bytes(conversation.state().to_bytes())
            return first.request, conversation.go_on(saved.unfinished).request

    first, second = run_virtual(run())
    assert second == first
    assert {name: getattr(second, name) for name in asked} == asked


def test_a_later_take_fences_the_earlier_one_off(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 6)])
            conversation = swarm.client(NO_SPARES).conversation()
            first = conversation.say("Hello", **OPTIONS)
            stream = aiter(first)
            for _ in range(10):
                await anext(stream)
            state = conversation.state()
            second = await swarm.client(NO_SPARES).resume(state)
            later = [piece.token_id async for piece in second.go_on(state.unfinished)]
            rest = [piece.token_id async for piece in stream]  # finds itself fenced off, and rebuilds
            fenced = first.reply.resumes[0].reason
            await conversation.close()
            await second.close()
            return later, rest, fenced

    later, rest, fenced = run_virtual(run())
    assert later == rest
    assert "later take" in fenced


def test_another_models_conversation_is_refused(virtual_swarm):
    async def run():
        async with virtual_swarm() as swarm:
            with pytest.raises(ManifestMismatch):
                await swarm.client().resume(ConversationState("f" * 64, []))

    run_virtual(run())


def test_a_transcript_gives_back_every_token_that_was_written(tmp_path, virtual_swarm):
    path = tmp_path / "chat.jsonl"

    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 6)])
            conversation = swarm.client().conversation()
            transcript = Transcript(path)
            transcript.write(Begin(swarm.model.manifest, "tiny", [], 0.0))
            generation = conversation.say("Hello", **OPTIONS)
            transcript.write(Turn(conversation.state().unfinished))
            async for piece in generation:
                transcript.write(Token(piece.token_id, piece.text))
                transcript.place(conversation.context.session.export())
            transcript.write(End(complete=True))
            unfinished = conversation.say("And?", **OPTIONS)
            transcript.write(Turn(conversation.state().unfinished))
            transcript.write(Token(7, "x"))
            transcript.close()
            expected = conversation.state()
            await conversation.close()
            return expected, unfinished.request.prompt_ids

    expected, prompt = run_virtual(run())
    saved = read_transcript(path)
    assert saved.messages == expected.messages
    assert saved.session == expected.session
    assert saved.unfinished.prompt_ids == prompt
    assert saved.unfinished.output_ids == (7,)
    assert saved.ids == (*prompt, 7)


def test_a_transcript_torn_anywhere_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "chat.jsonl"
    transcript = Transcript(path)
    transcript.write(Begin("0" * 64, "tiny", [{"role": "system", "content": "Be brief."}], 0.0))
    whole = path.read_bytes()
    for number in range(5):
        transcript.write(Token(number, "é"))
    transcript.close()
    content = path.read_bytes()
    for cut in range(len(whole), len(content)):
        path.write_bytes(content[:cut])
        assert read_transcript(path).messages == [{"role": "system", "content": "Be brief."}]
    path.write_bytes(whole[:-3])
    with pytest.raises(BrokenTranscript, match="not a chat"):
        read_transcript(path)
