"""`swarm generate`: continue one prompt and print the result."""

import sys

import click

from swarm.cli.client_options import ClientFlags, SamplingFlags, client_options, sampling_options
from swarm.cli.output import note, print_json, print_result
from swarm.cli.runtime import run_command
from swarm.errors import EmptyPrompt


@click.command("generate")
@click.argument("model")
@click.argument("prompt", required=False)
@client_options
@sampling_options
@click.option("--system", metavar="TEXT", help="A system prompt in front.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest reply. [default: what the context holds]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be repeated.")
@click.option("--no-stream", is_flag=True, help="Print the reply when it is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the reply as one JSON object.")
def command(
    model: str,
    prompt: str | None,
    client: ClientFlags,
    sampling: SamplingFlags,
    system: str | None,
    raw: bool,
    max_tokens: int | None,
    stop: tuple[str, ...],
    no_stream: bool,
    as_json: bool,
) -> None:
    """Ask MODEL (a cached name or a directory) to answer PROMPT, or what standard input holds.

    Other users of this machine can read PROMPT and --system in its list of processes, and your shell may
    keep them in its history. Leave PROMPT out, or write -, and pipe it in: nobody sees it then.
    The reply goes to standard output, everything else to standard error.
    """
    text = sys.stdin.read() if prompt in (None, "-") else prompt
    if not text.strip():
        raise EmptyPrompt("The prompt is empty", "Give a text, or pipe one in.")

    async def ask() -> None:
        async with await client.open(model) as swarm:
            ids = swarm.model.tokenizer.encode(text) if raw else swarm.chat_ids(_messages(system, text))
            generation = swarm.generate(
                ids, sampling=sampling.over(swarm.model.sampling), max_tokens=max_tokens, stop=stop
            )
            streaming = not (no_stream or as_json)
            try:
                async for piece in generation:
                    client.waiting.clear()
                    if streaming:
                        print_result(piece.text, end="")
            finally:
                client.waiting.clear()
            reply = generation.reply
            if as_json:
                print_json(reply.to_json())
            else:
                print_result("" if streaming else reply.text)
            for resume in reply.resumes:
                note(
                    f"Peer {resume.lost_peer[-8:]} was lost; the reply went on after {resume.stall_s:.2f} s."
                )

    run_command(ask())


def _messages(system: str | None, text: str) -> list[dict[str, object]]:
    first: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]
