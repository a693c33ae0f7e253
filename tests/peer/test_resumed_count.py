"""A peer counts the sessions it took up after a loss, a leave or a pause, and no others."""

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span


def test_only_sessions_that_were_taken_up_again_are_counted(tmp_path):
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=2))

    async def run():
        async with InProcessSwarm(tmp_path / "tiny", compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 2), Span(0, 2)])
            client = swarm.client(ClientOptions(spares="off"))
            await client.generate([1, 2, 3], max_tokens=3, stop_token_ids=frozenset())
            before = [hosted.peer.sessions.resumed_total for hosted in swarm.peers]
            count = 0
            async for _ in client.generate([1, 2, 3], max_tokens=10, stop_token_ids=frozenset()):
                count += 1
                if count == 3:
                    serving = next(hosted for hosted in swarm.peers if hosted.peer.handler.open_streams)
                    await serving.kill()
            return before, [hosted.peer.sessions.resumed_total for hosted in swarm.living]

    assert run_virtual(run()) == ([0, 0], [1])
