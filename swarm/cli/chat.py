"""`swarm chat`: talk with a model, turn by turn, in the terminal."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.client_options import ClientFlags, SamplingFlags, client_options, sampling_options
from swarm.cli.lines import LineReader
from swarm.cli.output import note
from swarm.cli.runtime import interruptible, run_command
from swarm.config import state_dir
from swarm.errors import SwarmError

if TYPE_CHECKING:
    from swarm.client.chat import Conversation
    from swarm.client.client import Client
    from swarm.client.generation import Generation
    from swarm.client.reply import Reply

HELP = """\
/help          this
/route         the peers that answer, and their blocks
/stats         speed and losses of the last reply
/system TEXT   a new conversation with this system prompt
/reset         a new conversation
/save FILE     write the conversation as JSON
/quit          end (so does Ctrl-D)"""


@click.command("chat")
@click.argument("model")
@client_options
@sampling_options
@click.option("--system", metavar="TEXT", help="A system prompt in front.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest reply. [default: what the context holds]")
def command(
    model: str,
    client: ClientFlags,
    sampling: SamplingFlags,
    system: str | None,
    max_tokens: int | None,
) -> None:
    """Talk with MODEL (a cached name or a directory).

    Lines that begin with / are commands; /help lists them. Ctrl-C stops a reply, at the prompt it
    ends the chat.
    """

    async def talk() -> None:
        async with await client.open(model) as swarm:
            await _Chat(swarm, sampling, max_tokens, system).run()

    run_command(talk())


class _Chat:
    """One run of the command: reads lines until the end of input."""

    def __init__(
        self, client: "Client", sampling: SamplingFlags, max_tokens: int | None, system: str | None
    ) -> None:
        self._client = client
        self._limits = {"sampling": sampling.over(client.model.sampling), "max_tokens": max_tokens}
        self._system = system
        self._conversation = self._begin()
        self._last: Reply | None = None
        self._lines = LineReader(state_dir() / "chat_history")

    async def run(self) -> None:
        """Answer lines until /quit or the end of input."""
        if sys.stdin.isatty():
            note(f"Chatting with {self._client.model.name}. /help lists commands, Ctrl-D ends.")
        try:
            while (line := await self._lines.read("> ")) is not None:
                text = line.strip()
                if text in ("/quit", "/exit"):
                    break
                if text.startswith("/"):
                    await self._obey(text)
                elif text:
                    await self._say(text)
        finally:
            await self._conversation.close()

    async def _say(self, text: str) -> None:
        try:
            generation = self._conversation.say(text, **self._limits)
            stopped = await interruptible(_print_pieces(generation))
        except SwarmError as error:
            click.echo()
            note(f"swarm: {error}")
            return
        click.echo()
        if stopped:
            await generation.aclose()
            note("Stopped.")
            return
        self._last = generation.reply
        self._conversation.accept(text, self._last)

    async def _obey(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/help":
            note(HELP)
        elif name == "/route":
            self._tell_route()
        elif name == "/stats":
            self._tell_stats()
        elif name in ("/reset", "/system"):
            await self._conversation.close()
            self._system = argument.strip() or self._system if name == "/system" else self._system
            self._conversation = self._begin()
            note("A new conversation.")
        elif name == "/save":
            self._save(argument.strip())
        else:
            note(f"There is no command {name}. /help lists them.")

    def _begin(self) -> "Conversation":
        conversation = self._client.conversation()
        if self._system:
            conversation.messages.append({"role": "system", "content": self._system})
        return conversation

    def _tell_route(self) -> None:
        for hop in self._last.hops if self._last else ():
            note(f"blocks {hop.blocks:>7}  peer {hop.peer}  {hop.dtype}")
        if self._last is None:
            note("Nobody has answered yet.")

    def _tell_stats(self) -> None:
        reply = self._last
        if reply is None:
            note("Nobody has answered yet.")
            return
        note(
            f"{reply.completion_tokens} tokens after a prompt of {reply.prompt_tokens}, the first after "
            f"{reply.ttft_s:.2f} s, then {reply.tokens_per_s:.1f} tokens/s."
        )
        for resume in reply.resumes:
            note(f"Peer {resume.lost_peer} was lost ({resume.reason}); {resume.stall_s:.2f} s until the reply went on.")

    def _save(self, name: str) -> None:
        if not name:
            note("Name a file: /save FILE")
            return
        saved = {"model": self._client.model.name, "messages": self._conversation.messages}
        try:
            Path(name).expanduser().write_text(json.dumps(saved, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            note(f"Could not write {name}: {error.strerror}.")
        else:
            note(f"Saved to {name}.")


async def _print_pieces(generation: "Generation") -> None:
    async for piece in generation:
        click.echo(piece.text, nl=False)
