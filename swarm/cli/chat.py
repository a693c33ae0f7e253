"""`swarm chat`: talk with a model, turn by turn, in the terminal."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.chats import LAST, Chats
from swarm.cli.client_options import ClientFlags, SamplingFlags, client_options, sampling_options
from swarm.cli.lines import LineReader
from swarm.cli.output import StatusLine, note, print_result
from swarm.cli.runtime import interruptible, run_command
from swarm.config import state_dir
from swarm.errors import SwarmError, UsageError

if TYPE_CHECKING:
    from swarm.client.client import Client
    from swarm.client.generation import Generation, Options
    from swarm.client.reply import Reply
    from swarm.client.transcript import Line, Transcript
    from swarm.model.chat_template import Message

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
@click.option(
    "--resume",
    is_flag=False,
    flag_value=LAST,
    metavar="[ID]",
    help="Go on with an earlier chat, in mid-reply if it broke off there. Without ID the last one.",
)
@click.option("--no-transcript", is_flag=True, help="Keep nothing of this chat on disk.")
def command(
    model: str,
    client: ClientFlags,
    sampling: SamplingFlags,
    system: str | None,
    max_tokens: int | None,
    resume: str | None,
    no_transcript: bool,
) -> None:
    """Talk with MODEL (a cached name or a directory).

    Lines that begin with / are commands; /help lists them. Ctrl-C stops a reply, at the prompt it
    ends the chat. Chats are kept, token by token, in a directory of yours that only you can read.
    """

    async def talk() -> None:
        async with await client.open(model) as swarm:
            chat = _Chat(
                swarm, sampling, max_tokens, system, None if no_transcript else Chats(state_dir() / "chats")
            )
            chat.waiting = client.waiting
            await chat.run(resume)

    run_command(talk())


class _Chat:
    """One run of the command: reads lines until the end of input."""

    def __init__(
        self,
        client: "Client",
        sampling: SamplingFlags,
        max_tokens: int | None,
        system: str | None,
        chats: "Chats | None",
    ) -> None:
        self.waiting = StatusLine()
        self._client = client
        self._limits: Options = {"sampling": sampling.over(client.model.sampling), "max_tokens": max_tokens}
        self._system = system
        self._chats = chats
        self._conversation = client.conversation()
        self._transcript: Transcript | None = None
        self._last: Reply | None = None
        self._lines = LineReader(state_dir() / "chat_history")

    async def run(self, resume: str | None) -> None:
        """Answer lines until /quit or the end of input."""
        try:
            if resume is None:
                self._begin()
            else:
                await self._resume(resume)
            await self._answer_lines()
        finally:
            await self._conversation.close()
            self._end_transcript()

    async def _answer_lines(self) -> None:
        if sys.stdin.isatty():
            note(f"Chatting with {self._client.model.name}. /help lists commands, Ctrl-D ends.")
        while (line := await self._lines.read("> ")) is not None:
            text = line.strip()
            if text in ("/quit", "/exit"):
                break
            if text.startswith("/"):
                await self._obey(text)
            elif text:
                await self._say(text)

    def _begin(self) -> None:
        """A new conversation, with its own transcript from the first line that is said on."""
        messages: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        self._conversation = self._client.conversation(messages)
        self._transcript = None

    async def _resume(self, chat_id: str) -> None:
        from swarm.client.transcript import GoOn, read_transcript
        from swarm.model.detokenizer import StreamDecoder

        if self._chats is None:
            raise UsageError("--resume needs the transcript", "Leave --no-transcript out.")
        self._transcript = self._chats.reopen(self._chats.find(chat_id, self._client.model.name))
        state = read_transcript(self._transcript.path)
        self._conversation = await self._client.resume(state)
        for message in state.messages:
            print_result(f"{'> ' if message['role'] == 'user' else ''}{message['content']}")
        if state.unfinished is not None:
            print_result(f"> {state.unfinished.text}")
            kept = state.unfinished.output_ids
            decoder = StreamDecoder(self._client.model.tokenizer, state.unfinished.prompt_ids)
            print_result("".join(map(decoder.push, kept)), end="")  # without the half of a character
            await self._stream(self._conversation.go_on(state.unfinished), GoOn(len(kept)))

    async def _say(self, text: str) -> None:
        from swarm.client.transcript import Turn

        generation = self._conversation.say(text, **self._limits)
        asked = self._conversation.state().unfinished
        if asked is not None:  # it has just begun
            await self._stream(generation, Turn(asked))

    async def _stream(self, generation: "Generation", first: "Line") -> None:
        """Show a reply as it comes; every token is on disk before it is shown, after the `first` line."""
        from swarm.client.transcript import End

        try:
            self._write(first)
            try:
                stopped = await interruptible(self._show(generation))
            finally:
                self.waiting.clear()
            print_result("")
            self._write(End(complete=not stopped))
        except SwarmError as error:
            await generation.aclose()
            print_result("")
            note(f"swarm: {error}")
            return
        if stopped:
            await generation.aclose()
            note("Stopped.")
        else:
            self._last = generation.reply

    async def _show(self, generation: "Generation") -> None:
        from swarm.client.transcript import Token

        async for piece in generation:
            self.waiting.clear()
            if self._transcript is not None:
                self._transcript.place(self._conversation.context.session.export())
                self._transcript.write(Token(piece.token_id, piece.text, piece.finish_reason is not None))
            print_result(piece.text, end="")

    def _write(self, line: "Line") -> None:
        """Keep a line. The first one begins the file, so that a chat in which nothing is said leaves none."""
        if self._chats is None:
            return
        if self._transcript is None:
            model = self._client.model
            self._transcript = self._chats.new(model.name, model.manifest, self._conversation.messages)
        self._transcript.write(line)

    def _end_transcript(self) -> None:
        if self._transcript is not None:
            self._transcript.close()
            if sys.stdin.isatty() and self._conversation.messages:
                model, chat_id = self._client.model.name, self._transcript.path.stem
                note(f"Go on later with: swarm chat {model} --resume {chat_id} --join ADDRESS")

    async def _obey(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/help":
            for each in HELP.splitlines():
                note(each)
        elif name == "/route":
            self._tell_route()
        elif name == "/stats":
            self._tell_stats()
        elif name in ("/reset", "/system"):
            await self._conversation.close()
            self._end_transcript()
            self._system = argument.strip() or None if name == "/system" else self._system
            self._begin()
            note("A new conversation.")
        elif name == "/save":
            self._save(argument.strip())
        else:
            note(f"There is no command {name}. /help lists them.")

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
            note(f"Peer {resume.lost_peer}: {resume.reason}. The reply went on after {resume.stall_s:.2f} s.")

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
