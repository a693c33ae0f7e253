"""POST /v1/embeddings: texts to vectors, by a model that is for that."""

import asyncio
import base64
from collections.abc import Sequence

from torch import Tensor

from swarm.errors import ContextOverflow, EmptyPrompt, ModelError
from swarm.gateway.models import HostedModel
from swarm.gateway.refusal import Refusal, bad
from swarm.gateway.schema import Embedding, EmbeddingRequest, Embeddings, EmbeddingUsage
from swarm.gateway.streams import first_refusal
from swarm.gateway.translate import Runner, read_prompts
from swarm.model.pooling import Pooling, read_pooling

MAX_INPUTS = 1024
AT_ONCE = 4  # inputs of one request; with more, others would wait for it


async def embed(body: EmbeddingRequest, hosted: HostedModel, run: Runner) -> tuple[Pooling, list[list[int]]]:
    """How a request is to be embedded, and its inputs as token ids. Raises a `Refusal`."""
    pooling = await run(lambda: _pooling_of(hosted))
    _check_dimensions(body.dimensions, pooling, hosted.client.model.config.hidden_size)
    inputs = await run(lambda: read_prompts(body.input, hosted, "input", MAX_INPUTS))
    room = hosted.client.model.config.context_length
    for ids in inputs:
        if not ids:
            raise bad("input", "An input is empty", "Give at least one token.", EmptyPrompt.code)
        if len(ids) > room:
            raise bad(
                "input", f"An input has {len(ids)} tokens; the model's context holds {room}",
                "Shorten it.", ContextOverflow.code,
            )  # fmt: skip
    return pooling, inputs


async def answer(
    body: EmbeddingRequest,
    hosted: HostedModel,
    pooling: Pooling,
    inputs: Sequence[Sequence[int]],
    within_s: float,
) -> Embeddings:
    """The vectors of all inputs, in order. Raises `SwarmError`."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def vector(ids: Sequence[int]) -> Tensor:
        async with limit:
            return await hosted.client.embed(ids, pooling, body.dimensions)

    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            tasks = [group.create_task(vector(ids)) for ids in inputs]
    except TimeoutError:
        raise Refusal(
            504, f"The embeddings took longer than {within_s:.0f} s", "Send fewer inputs.",
            reason="deadline_exceeded",
        ) from None  # fmt: skip
    except BaseExceptionGroup as group:
        raise first_refusal(group) from group
    tokens = sum(map(len, inputs))
    data = [
        Embedding(index=index, embedding=_told(task.result(), body.encoding_format))
        for index, task in enumerate(tasks)
    ]
    return Embeddings(
        data=data, model=hosted.name, usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    )


def _told(vector: Tensor, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


def _pooling_of(hosted: HostedModel) -> Pooling:
    try:
        pooling = read_pooling(hosted.client.model.directory)
    except ModelError as error:
        raise Refusal(404, error.what, error.fix, reason="embeddings_unsupported", param="model") from error
    if pooling is None:
        raise Refusal(
            404,
            f"{hosted.name} is a model for generation, not for embeddings",
            "Ask a gateway that serves an embedding model.",
            reason="embeddings_unsupported",
            param="model",
        )
    return pooling


def _check_dimensions(wanted: int | None, pooling: Pooling, hidden_size: int) -> None:
    if wanted is None or wanted == hidden_size:
        return
    allowed = wanted in pooling.dimensions if pooling.dimensions else pooling.may_cut
    if not allowed or wanted > hidden_size:
        sizes = ", ".join(map(str, pooling.dimensions)) or f"up to {hidden_size}"
        has = f"can be cut to {sizes}" if pooling.may_cut else f"has {hidden_size} and may not be cut"
        raise bad("dimensions", f"dimensions is {wanted}; the model's embedding {has}", "Leave it out.")
