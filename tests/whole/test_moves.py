"""Peers that move because another died: the blocks are hosted again, and no conversation loses a token."""

import asyncio

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.model.dtypes import parse_dtype
from swarm.model.span import SpanModel
from swarm.model.weights import load_span
from swarm.network.directory import Directory
from swarm.peer.mover import Hosted, Mover
from swarm.peer.throughput import Throughput
from swarm.testing.clock import run_virtual
from swarm.testing.swarm import HostedPeer, InProcessSwarm
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
COUNT = 60


async def move(swarm: InProcessSwarm, hosted: HostedPeer, span: Span) -> None:
    """What `swarm peer` does when it moves, with the weights of the tiny model."""
    throughput = hosted.peer.throughput

    async def load() -> tuple[SpanModel, Throughput]:
        blocks = load_span(swarm.directory, swarm.model.config, span, dtype=parse_dtype("fp32"))
        return blocks, throughput

    await hosted.peer.move(hosted.network, load, 30.0)


def let_move(swarm: InProcessSwarm, hosted: HostedPeer, fitting: int, moves: list[str]) -> asyncio.Task[None]:
    """Have the peer look where it helps more, as `swarm peer` does."""

    async def go(span: Span) -> None:
        moves.append(str(span))
        await move(swarm, hosted, span)

    directory = Directory(hosted.network, swarm.now)
    mover = Mover(directory, hosted.peer.announcer, lambda: Hosted(fitting, 1000.0, 5.0), go, swarm.now)
    return asyncio.create_task(mover.run())


def serving(swarm: InProcessSwarm, span: Span) -> HostedPeer:
    return next(
        each
        for each in swarm.living
        if each.peer.announcer.profile.span == span and each.peer.handler.open_streams
    )


def test_a_peer_moves_to_the_blocks_of_one_that_died_while_a_conversation_runs(virtual_swarm, reference):
    async def run():
        moves: list[str] = []
        async with virtual_swarm(compute=lambda: InlineCompute(0.5)) as swarm:
            peers = await swarm.add_peers([Span(0, 3), Span(0, 3), Span(3, 6)])
            movers = [let_move(swarm, peer, 3, moves) for peer in peers]
            client = swarm.client(ClientOptions(patience_s=300, spares="off"))
            generation = client.generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            ids = []
            async for piece in generation:
                ids.append(piece.token_id)
                if len(ids) == 10:
                    await peers[2].kill()
            spans = sorted(str(peer.peer.announcer.profile.span) for peer in swarm.living)
            for mover in movers:
                mover.cancel()
            return ids, moves, spans

    ids, moves, spans = run_virtual(run())
    assert ids == reference.reply(PROMPT, COUNT)
    assert (moves, spans) == (["3:6"], ["0:3", "3:6"])


def test_a_conversation_on_the_peer_that_moves_is_told_and_goes_on_elsewhere(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.1)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(0, 3), Span(3, 6)])
            client = swarm.client(ClientOptions(patience_s=300, spares="off"))
            generation = client.generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            ids = []
            async for piece in generation:
                ids.append(piece.token_id)
                if len(ids) == 10:
                    used = serving(swarm, Span(0, 3))
                    used.peer.announcer.choose_span(Span(3, 6))
                    moving = asyncio.create_task(move(swarm, used, Span(3, 6)))
            await moving
            snapshot = await client.snapshot()
            return ids, generation.reply, sorted(str(record.span) for record in snapshot.online())

    ids, reply, hosted = run_virtual(run())
    assert ids == reference.reply(PROMPT, COUNT)
    assert [resume.reason for resume in reply.resumes] == ["it is leaving"]
    assert hosted == ["0:3", "3:6", "3:6"]


def test_two_that_could_go_do_not_both_leave_their_blocks(virtual_swarm):
    async def run():
        moves: list[str] = []
        async with virtual_swarm() as swarm:
            peers = await swarm.add_peers([Span(0, 2), Span(0, 2), Span(0, 2), Span(4, 6)])
            movers = [let_move(swarm, peer, 2, moves) for peer in peers]
            covered = []
            for _ in range(300):
                await asyncio.sleep(1)
                snapshot = await swarm.client().snapshot()
                covered.append(snapshot.coverage())
            for mover in movers:
                mover.cancel()
            return moves, covered

    moves, covered = run_virtual(run())
    assert moves == ["2:4"]
    assert all(coverage[0] and coverage[4] for coverage in covered)
    assert min(covered[-1]) == 1
