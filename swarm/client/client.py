"""The client library's front door, and the one place where its parts are put together.

    async with await Client.open("smollm2-135m", join=["/ip4/..."]) as client:
        reply = await client.chat([{"role": "user", "content": "Hello"}])
        async for piece in client.generate("Once upon a time"):
            print(piece.text, end="")

A client holds the small ends of the model and a node on the network; each reply has a session of
its own, each conversation keeps one.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import torch

from swarm.client.batched_head import BatchedHead
from swarm.client.chat import Conversation, ConversationState
from swarm.client.context import Context
from swarm.client.generation import Generation, Limits, Options, Request, Voice
from swarm.client.model import ClientModel, load_client_model
from swarm.client.routes import Routes
from swarm.config import known_peers_folder, store_root
from swarm.errors import ClockOff, ManifestMismatch, RequestError, SwarmError
from swarm.model.chat_template import Json, Message
from swarm.model.compute import Compute, ComputeThread
from swarm.model.pooling import Pooling
from swarm.model.sampling import Sampling
from swarm.network.directory import Directory
from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
from swarm.network.rejoin import shared_peer_list
from swarm.network.transport import Network
from swarm.security.identity import new_identity
from swarm.security.session_key import SessionKey
from swarm.session.hop import HopSettings
from swarm.session.local import LocalBlocks
from swarm.session.opener import Opener
from swarm.session.plan import Numerics
from swarm.session.rules import ChainRules, Exactness, SparePolicy
from swarm.values import Span
from swarm.wire.records import Snapshot


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves when peers are slow, lost or missing."""

    patience_s: float = 30.0  # how long to wait for blocks that are on no live peer
    lease_s: float = 2.0  # silence after which a hop counts as lost
    open_timeout_s: float = 5.0
    dtype: str | None = None  # only peers that compute in it; None: whatever the swarm has
    recovery: Exactness = "auto"
    spares: SparePolicy = "auto"
    local_fallback: bool = False  # run blocks that nobody hosts in this process, if they fit
    on_wait: Callable[[SwarmError], None] = field(default=lambda error: None)
    on_local: Callable[[str], None] = field(default=lambda text: None)  # told when blocks are run here


class Client:
    """Generates text over a swarm. Use as an async context manager, or call `close`."""

    def __init__(
        self,
        model: ClientModel,
        network: Network,
        directory: Directory,
        options: ClientOptions | None = None,
        compute: Compute | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.model = model
        self.options = options or ClientOptions()
        self._network = network
        self._now = now
        self._directory = directory
        self._compute = compute or ComputeThread()
        self._head = BatchedHead(model.head, self._compute)
        self._routes = Routes(self._fetch_snapshot)
        self._local = self._local_blocks() if self.options.local_fallback else None

    @classmethod
    async def open(
        cls, model: str | Path, *, join: Sequence[str], options: ClientOptions | None = None
    ) -> "Client":
        """Load the ends of a model (a cached name or a directory) and join a swarm through `join`.

        Raises `UnknownModel`, `BrokenModel` or `JoinFailed`.
        """
        (client,) = await cls.open_all([model], join=join, options=options)
        return client

    @classmethod
    async def open_all(
        cls, models: Sequence[str | Path], *, join: Sequence[str], options: ClientOptions | None = None
    ) -> "list[Client]":
        """A client for each model, all on one node and one compute thread, so closing one closes all.

        Raises as `open`.
        """
        options = options or ClientOptions()
        loaded = [
            await asyncio.to_thread(load_client_model, str(model), store_root(), options.dtype)
            for model in models
        ]
        peer_list = shared_peer_list(known_peers_folder(), join)
        config = Libp2pConfig(join=tuple(join), client=True, peer_list=peer_list)
        network = await Libp2pNetwork.start(config, new_identity())
        directory, compute = Directory(network, time.time), ComputeThread()
        return [cls(each, network, directory, options, compute) for each in loaded]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the swarm. Replies in the making end with an error."""
        self._compute.close()
        if self._local is not None:
            self._local.compute.close()
        await self._routes.close()
        await self._network.close()

    @property
    def network(self) -> Network:
        """The client's node."""
        return self._network

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Generation:
        """The next reply of a conversation. Await it, or iterate over it. Options as `generate`."""
        return self.generate(self.chat_ids(messages), **options)

    def chat_ids(self, messages: Sequence[Message], **variables: Json) -> list[int]:
        """The prompt of a conversation: rendered with the model's chat template, as token ids."""
        return self.model.tokenizer.encode_chat(messages, **variables)

    def generate(
        self, prompt: str | Sequence[int], *, sampling: Sampling | None = None, **limits: Unpack[Limits]
    ) -> Generation:
        """Continue a prompt: text, or token ids as they are. Await it, or iterate over it.

        `limits` are the fields of `Request`: max_tokens, min_tokens, stop, top_logprobs, ...
        Raises `EmptyPrompt` or `ContextOverflow` at once.
        """
        return self.begin(self.request(prompt, sampling, **limits))

    def begin(self, request: Request) -> Generation:
        """Begin the reply to a request, or go on with one whose `output_ids` are there already."""
        return Generation(request, self.voice, self._new_context)

    async def embed(
        self, ids: Sequence[int], pooling: Pooling, dimensions: int | None = None
    ) -> torch.Tensor:
        """The embedding [dimensions] in fp32 of a text's token ids, of which there is at least one.

        `pooling` is what `read_pooling` finds in the model's directory.
        """
        context = self._context()
        try:
            return await context.embed(ids, pooling, dimensions)
        finally:
            await context.close()

    def request(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, **limits: Unpack[Limits]
    ) -> Request:
        """A request with the model's own defaults for what is not given. Raises `RequestError`."""
        if isinstance(limits.get("stop"), str):
            raise RequestError("stop is a single text", 'Give a tuple of texts: stop=("END",).', "stop")
        ids = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        limits.setdefault("stop_token_ids", frozenset(self.model.config.stop_token_ids))
        sampling = sampling or self.model.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(63))
        return Request(tuple(ids), sampling, **limits)

    def conversation(self, messages: Sequence[Message] = ()) -> Conversation:
        """A chat that keeps its session from turn to turn. To be closed by the caller."""

        def prepare(messages: list[Message], **options: Unpack[Options]) -> Request:
            return self.request(self.chat_ids(messages), **options)

        def ask(request: Request, context: Context) -> Generation:
            async def same_context() -> Context:
                return context

            return Generation(request, self.voice, same_context, keep=True)

        return Conversation(self.model.manifest, self._context(), prepare, ask, list(messages))

    async def resume(self, state: ConversationState) -> Conversation:
        """Go on with a conversation of an earlier process.

        What the peers still hold is not computed again. A reply that was interrupted is in
        `state.unfinished`, for `Conversation.go_on`. Raises `ManifestMismatch` for another model's.
        """
        if state.manifest != self.model.manifest:
            raise ManifestMismatch(
                f"The conversation is with the model {state.manifest}, this one is {self.model.manifest}",
                "Resume it with the model it was begun with.",
            )
        conversation = self.conversation(state.messages)
        if state.session is not None and state.ids:
            await conversation.context.take_up(state.session, state.ids)
        return conversation

    async def snapshot(self) -> Snapshot:
        """Who hosts the model now."""
        return await self._routes.refresh()

    @property
    def voice(self) -> Voice:
        """What turns tokens into replies."""
        model = self.model
        return Voice(model.name, model.manifest, model.tokenizer, model.config.context_length)

    async def _new_context(self) -> Context:
        return self._context()

    def _context(self) -> Context:
        config, options = self.model.config, self.options
        settings = HopSettings(
            key=SessionKey.new(),
            epoch=0,
            manifest=self.model.manifest,
            codec="fp32",
            hidden_size=config.hidden_size,
            max_tokens=config.context_length,
            lease_s=options.lease_s,
            open_timeout_s=options.open_timeout_s,
        )
        blocks = Span(0, config.num_blocks)
        rules = ChainRules(blocks, options.patience_s, options.recovery, options.spares)
        opener = Opener(
            network=self._network,
            planner=self._routes,
            settings=settings,
            rules=rules,
            local=self._local,
            numerics=Numerics(options.dtype, "none") if options.dtype else None,
            on_wait=options.on_wait,
        )
        return Context(opener, rules, self._head, self._now)

    def _local_blocks(self) -> LocalBlocks:
        model = self.model
        return LocalBlocks(
            model.directory, model.config, model.whole_manifest, ComputeThread(), self.options.on_local
        )

    async def _fetch_snapshot(self) -> Snapshot:
        model = self.model
        snapshot = await self._directory.snapshot(model.manifest, model.config.num_blocks)
        if not snapshot.peers:
            await self._explain_absence()
        return snapshot

    async def _explain_absence(self) -> None:
        """Nobody hosts this model: say so if somebody hosts another of the same name, or if this machine's
        clock makes it seem so."""
        model = self.model
        if self._network.behind_s:
            raise ClockOff(self._network.behind_s)
        others = [record for record in await self._directory.models() if record.name == model.name]
        if others and all(record.model != model.manifest for record in others):
            raise ManifestMismatch(
                f"The swarm hosts another {model.name}: its manifest is {others[0].model}, "
                f"yours is {model.manifest}",
                "Get the same weights (swarm model pull), or join another swarm.",
            )
