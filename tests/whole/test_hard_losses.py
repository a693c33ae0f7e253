"""Losses that meet another loss, an edit, a cancelled call or a slow link: the tokens stay what they were."""

import asyncio

import pytest

from swarm.client.client import ClientOptions
from swarm.errors import NoRoute
from swarm.model.compute import InlineCompute
from swarm.network.memory import LinkConditions
from swarm.peer.sessions import SessionLimits
from swarm.session.opener import SessionState
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
LONG_PROMPT = [number * 7 % 250 for number in range(400)]  # more than one step, so hops compute side by side
WHOLE = Span(0, 6)
THIRDS = [Span(0, 2), Span(2, 4), Span(4, 6)]
HALVES = [Span(0, 3), Span(3, 6)]
DIRECTIONS = ["to the peer", "from the peer"]
NO_SPARES, SPARES = ClientOptions(spares="off"), ClientOptions(spares="always")


def costing(seconds):
    return lambda: InlineCompute(seconds)


async def said_after(context, ids, count) -> list[int]:
    """The next tokens after `ids`, each the likeliest."""
    tokens = [int((await context.move_to(ids)).argmax())]
    while len(tokens) < count:
        tokens.append(int((await context.feed(tokens[-1:])).argmax()))
    return tokens


def active_on(swarm, span):
    """The living peer whose session on the span is the active one."""
    return next(
        hosted
        for hosted in swarm.living
        if hosted.peer.announcer.profile.span == span
        and any(session.attached and not session.spare for session in hosted.peer.sessions.all())
    )


def link_up(swarm, client, peers, link) -> None:
    """Give a client such a link with some peers, both ways."""
    for hosted in peers:
        swarm.net.set_links(client.network.peer_id, hosted.id, link)


def held(swarm) -> list[int]:
    """How many sessions each living peer holds."""
    return [len(hosted.peer.sessions) for hosted in swarm.living]


def cut_off_during_a_long_prompt(virtual_swarm, after_s, then=PROMPT):
    """All links of a client are cut for 3 s while it sends a prompt.

    Gives what is said after it, what is said after `then`, and how many tokens each loss cost.
    """

    async def run():
        async with virtual_swarm(compute=costing(0.2)) as swarm:
            await swarm.add_peers(THIRDS)
            client = swarm.client(NO_SPARES)
            context = client.conversation().context
            async with asyncio.timeout(100):
                asking = asyncio.create_task(said_after(context, LONG_PROMPT, 2))
                await asyncio.sleep(after_s)
                link_up(swarm, client, swarm.peers, LinkConditions(cut=True))
                await asyncio.sleep(3)
                link_up(swarm, client, swarm.peers, LinkConditions())
                said = await asking
                replayed = [resume.replayed_tokens for resume in context.session.resumes]
                said_then = await said_after(context, then, 2)
            await context.close()
            return said, said_then, replayed

    return run_virtual(run())


@pytest.mark.parametrize("after_s", [0.3, 0.5, 0.7])
def test_neighbours_lost_together_during_a_prompt_and_found_again_change_no_token(
    virtual_swarm, reference, after_s
):
    said, _, replayed = cut_off_during_a_long_prompt(virtual_swarm, after_s)
    assert said == reference.reply(LONG_PROMPT, 2)
    assert len(replayed) == 3


def test_neighbours_that_are_found_again_go_on_from_what_they_hold(virtual_swarm):
    _, _, replayed = cut_off_during_a_long_prompt(virtual_swarm, 0.7)
    assert max(replayed) < len(LONG_PROMPT)


@pytest.mark.parametrize("kept", [100, 200, 300])
def test_a_conversation_whose_neighbours_were_lost_together_can_be_edited_anywhere(
    virtual_swarm, reference, kept
):
    edited = [*LONG_PROMPT[:kept], *PROMPT]
    _, said, _ = cut_off_during_a_long_prompt(virtual_swarm, 0.3, edited)
    assert said == reference.reply(edited, 2)


async def left_off(swarm, ids) -> SessionState:
    """The state of a session that held `ids` and whose client is gone."""
    client = swarm.client(NO_SPARES)
    context = client.conversation().context
    await context.move_to(ids)
    state = context.session.export()
    await client.network.close()
    await asyncio.sleep(0.5)
    return state


def test_of_neighbours_lost_together_after_a_resume_one_may_have_forgotten_the_session(
    virtual_swarm, reference
):
    async def run():
        async with virtual_swarm(compute=costing(0.2)) as swarm:
            _, middle, last = await swarm.add_peers(THIRDS)
            state = await left_off(swarm, PROMPT)
            client = swarm.client(NO_SPARES)
            context = client.conversation().context
            await context.take_up(state, PROMPT)
            asking = asyncio.create_task(said_after(context, [*PROMPT, *LONG_PROMPT], 2))
            await asyncio.sleep(0.5)
            link_up(swarm, client, (middle, last), LinkConditions(cut=True))
            await asyncio.sleep(1)
            last.peer.sessions.close(*last.peer.sessions.all())
            link_up(swarm, client, (middle, last), LinkConditions())
            async with asyncio.timeout(100):
                said = await asking
            losses = len(context.session.resumes)
            await context.close()
            return said, losses

    said, losses = run_virtual(run())
    assert said == reference.reply([*PROMPT, *LONG_PROMPT], 2)
    assert losses == 2


def test_when_everything_is_built_again_after_a_resume_no_spare_follows_what_was_before(
    virtual_swarm, reference
):
    async def run():
        async with virtual_swarm(compute=costing(0.01)) as swarm:
            await swarm.add_peers(HALVES)
            state = await left_off(swarm, PROMPT)
            context = swarm.client(SPARES).conversation().context
            await context.take_up(state, PROMPT)
            await swarm.add_peers(HALVES)
            said = await said_after(context, PROMPT, 1)
            await asyncio.sleep(12)
            chain = context.session.chain
            followed = [hop.planned.span for hop in chain.hops if chain.spares.of(hop)]
            for span in reversed(HALVES):
                await active_on(swarm, span).kill()
                said += await said_after(context, PROMPT + said, 12)
            await context.close()
            return followed, said

    followed, said = run_virtual(run())
    assert followed == HALVES[:1]
    assert said == reference.reply(PROMPT, 25)


@pytest.mark.parametrize("broken_at_s", [0.4, 0.6, 0.8, 1.0, 1.2])
def test_a_hop_lost_while_its_spare_is_opened_is_lost_once_and_leaves_no_session(
    virtual_swarm, reference, broken_at_s
):
    async def run():
        async with virtual_swarm(compute=costing(0.02)) as swarm:
            peers = await swarm.add_peers([WHOLE, WHOLE])
            client = swarm.client(SPARES)
            context = client.conversation().context
            await context.move_to(PROMPT[:-1])
            link_up(swarm, client, peers, LinkConditions(delay_s=0.2))
            asyncio.get_running_loop().call_later(broken_at_s, context.session.hops[0]._channel.close)
            said = await said_after(context, PROMPT, 10)
            reasons = [resume.reason for resume in context.session.resumes]
            await context.close()
            await asyncio.sleep(1)
            return said, reasons, held(swarm)

    said, reasons, left = run_virtual(run())
    assert said == reference.reply(PROMPT, 10)
    assert reasons == ["the stream broke"]
    assert left == [0, 0]


def test_a_spare_whose_opening_a_loss_overtakes_does_not_hide_the_session_from_a_later_process(
    virtual_swarm,
):
    async def run():
        async with virtual_swarm(compute=costing(0.02)) as swarm:
            peers = await swarm.add_peers([WHOLE, WHOLE])
            client = swarm.client(SPARES)
            context = client.conversation().context
            await context.move_to(PROMPT)
            link_up(swarm, client, peers, LinkConditions(delay_s=1.0))
            await asyncio.sleep(0.6)  # the spare is being opened
            link_up(swarm, client, peers, LinkConditions())  # what is sent later arrives earlier
            context.session.hops[0]._channel.close()
            await said_after(context, PROMPT, 2)
            await asyncio.sleep(1)
            state, ids = context.session.export(), list(context.ids)
            await client.network.close()
            context = swarm.client(NO_SPARES).conversation().context
            await context.take_up(state, ids)
            found = context.session.position
            await context.close()
            return found, len(ids) - 1

    found, known = run_virtual(run())
    assert found == known


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SessionLimits(cache_bytes=150_000, context_tokens=2048), "have no room for another session"),
        (SessionLimits(cache_bytes=2**28, context_tokens=200), "256 tokens are more than the 200 granted"),
    ],
)
def test_peers_that_take_a_session_and_then_refuse_its_steps_are_given_up_within_the_patience(
    virtual_swarm, limits, reason
):
    patience_s = 3.0

    async def run():
        async with virtual_swarm(compute=costing(0.02)) as swarm:
            for _ in range(2):
                await swarm.add_peer(WHOLE, limits=limits)
            context = swarm.client(ClientOptions(spares="off", patience_s=patience_s)).conversation().context
            async with asyncio.timeout(100):
                with pytest.raises(NoRoute, match=reason):
                    await context.move_to(LONG_PROMPT)
            return asyncio.get_running_loop().time()

    assert patience_s <= run_virtual(run()) < 2 * patience_s


def asked_over_a_slow_link(virtual_swarm, direction, bytes_per_s):
    """What is said over a link that is slow in one direction, and the reasons of losses."""

    async def run():
        async with virtual_swarm() as swarm:
            peers = await swarm.add_peers(HALVES)
            client = swarm.client(ClientOptions(spares="off", lease_s=0.1, patience_s=10.0))
            own, slow = client.network.peer_id, LinkConditions(rate_bytes_per_s=bytes_per_s)
            for hosted in peers:
                ends = (own, hosted.id) if direction == "to the peer" else (hosted.id, own)
                swarm.net.set_link(*ends, slow)
            context = client.conversation().context
            async with asyncio.timeout(100):
                said = await said_after(context, LONG_PROMPT, 2)
            reasons = [resume.reason for resume in context.session.resumes]
            await context.close()
            return said, reasons

    return run_virtual(run())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_that_take_longer_than_the_lease_on_their_way_are_no_loss(virtual_swarm, reference, direction):
    said, reasons = asked_over_a_slow_link(virtual_swarm, direction, 110_000)
    assert said == reference.reply(LONG_PROMPT, 2)
    assert reasons == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_peer_lost_for_silence_is_found_again_and_its_link_taken_for_slower(
    virtual_swarm, reference, direction
):
    said, reasons = asked_over_a_slow_link(virtual_swarm, direction, 40_000)
    assert said == reference.reply(LONG_PROMPT, 2)
    assert 1 <= len(reasons) <= 2
    assert all("silent" in reason for reason in reasons)


def test_a_first_plan_on_a_dead_peer_does_not_settle_the_number_format(virtual_swarm, reference):
    async def run():
        async with virtual_swarm() as swarm:
            [other] = await swarm.add_peers([WHOLE])
            swarm.dtype = "bf16"
            [dead] = await swarm.add_peers([WHOLE])
            client = swarm.client(NO_SPARES)
            client._routes.heard(other.id, 0.9)  # so that the dead one is tried first
            await dead.kill()
            return await client.generate(PROMPT, max_tokens=3, stop_token_ids=frozenset())

    reply = run_virtual(run())
    assert [hop.dtype for hop in reply.hops] == ["fp32"]
    assert list(reply.token_ids) == reference.reply(PROMPT, 3)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03])
def test_a_step_cancelled_while_a_spare_takes_over_leaves_no_session_behind(virtual_swarm, after_s):
    async def run():
        async with virtual_swarm(compute=costing(0.02)) as swarm:
            await swarm.add_peers([WHOLE, WHOLE])
            context = swarm.client(SPARES).conversation().context
            await context.move_to(PROMPT)
            await asyncio.sleep(1)
            await active_on(swarm, WHOLE).kill()
            asking = asyncio.ensure_future(context.feed([1]))
            await asyncio.sleep(after_s)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await context.close()
            await asyncio.sleep(1)
            return held(swarm), [hosted.peer.handler.open_streams for hosted in swarm.living]

    assert run_virtual(run()) == ([0], [0])


@pytest.mark.parametrize("chain", [[WHOLE], HALVES])
@pytest.mark.parametrize("tokens", range(6, 11))
def test_a_spare_that_knows_a_row_whose_answer_was_lost_is_sent_it_again(
    virtual_swarm, reference, chain, tokens
):
    async def run():
        async with virtual_swarm(compute=costing(0.02)) as swarm:
            await swarm.add_peers([*chain, *chain])
            context = swarm.client(SPARES).conversation().context
            await context.move_to(PROMPT)
            await asyncio.sleep(1)
            said = await said_after(context, PROMPT, tokens)
            swarm.net.freeze(active_on(swarm, chain[0]).id)  # while the spare computes what it lags behind
            async with asyncio.timeout(100):
                said += await said_after(context, PROMPT + said, 3)
            reasons = [resume.reason for resume in context.session.resumes]
            await context.close()
            return said, reasons

    said, reasons = run_virtual(run())
    assert said == reference.reply(PROMPT, tokens + 3)
    assert reasons == ["silent for 2.0 s"]


def test_what_a_peer_still_holds_is_kept_while_its_neighbour_cannot_be_found(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=costing(0.2)) as swarm:
            peers = await swarm.add_peers(HALVES)
            client = swarm.client(NO_SPARES)
            context = client.conversation().context
            asking = asyncio.create_task(said_after(context, LONG_PROMPT, 1))
            await asyncio.sleep(0.5)
            link_up(swarm, client, peers, LinkConditions(cut=True))
            await asyncio.sleep(1)
            link_up(swarm, client, peers[:1], LinkConditions())
            await asyncio.sleep(5)  # the first is found, again and again, without the second
            link_up(swarm, client, peers[1:], LinkConditions())
            async with asyncio.timeout(100):
                said = await asking
            sent_again = context.session.hops[0].stats.tokens
            await context.close()
            return said, sent_again

    said, sent_again = run_virtual(run())
    assert said == reference.reply(LONG_PROMPT, 1)
    assert sent_again < len(LONG_PROMPT)
