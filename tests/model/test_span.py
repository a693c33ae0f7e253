"""Sessions in one batch, caches that grow and go back, failures that change nothing, 16-bit formats."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swarm.errors import ContextOverflow, UsageError
from swarm.model.cache import bytes_per_token
from swarm.model.config import read_config
from swarm.model.linear.choice import Form, plain_choice, stands_for
from swarm.model.linear.linear import pack_linear
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_span
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

WHOLE = Span(0, 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory, TinyModel(family="mistral", overrides={"sliding_window": 9}))
    return directory


@pytest.fixture
def model(directory) -> SpanModel:
    return load(directory)


def load(directory: Path, dtype: torch.dtype = torch.float32, span: Span = WHOLE) -> SpanModel:
    return load_span(directory, read_config(directory), span, dtype=dtype)


def rows(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, 48, generator=torch.Generator().manual_seed(seed))


def run(model: SpanModel, *chunks: torch.Tensor) -> torch.Tensor:
    cache = model.new_cache()
    return torch.cat([model.forward([SpanStep(cache, chunk)])[0] for chunk in chunks])


def test_a_ragged_batch_gives_each_session_what_it_gets_alone(model):
    firsts = [rows(5, 1), rows(1, 2), rows(20, 3), rows(1, 4)]
    seconds = [rows(1, 5), rows(12, 6), rows(1, 7), rows(1, 8)]
    caches = [model.new_cache() for _ in firsts]
    for step_rows in (firsts, seconds):
        outputs = model.forward([SpanStep(*pair) for pair in zip(caches, step_rows, strict=True)])
    for output, first, second in zip(outputs, firsts, seconds, strict=True):
        torch.testing.assert_close(output, run(model, first, second)[len(first) :], atol=2e-5, rtol=0)


def test_a_session_may_use_some_of_the_blocks(model, directory):
    cache = model.new_cache(Span(1, 3))
    (output,) = model.forward([SpanStep(cache, rows(6))], Span(1, 3))
    torch.testing.assert_close(output, run(load(directory, span=Span(1, 3)), rows(6)), atol=1e-6, rtol=0)


def test_hidden_states_given_in_are_left_untouched(model):
    given = rows(3)
    model.forward([SpanStep(model.new_cache(), given)])
    assert torch.equal(given, rows(3))


def test_rewinding_and_stepping_again_gives_the_same_bits(model):
    cache = model.new_cache()
    model.forward([SpanStep(cache, rows(10))])
    (first,) = model.forward([SpanStep(cache, rows(1, 1))])
    model.forward([SpanStep(cache, rows(7, 2))])
    cache.rewind(10)
    (again,) = model.forward([SpanStep(cache, rows(1, 1))])
    assert torch.equal(first, again)
    assert cache.position == 11


@pytest.mark.parametrize("position", [-1, 11])
def test_a_cache_refuses_a_rewind_to_where_it_has_not_been(model, position):
    cache = model.new_cache()
    model.forward([SpanStep(cache, rows(10))])
    with pytest.raises(UsageError, match="holds 10 tokens"):
        cache.rewind(position)
    assert cache.position == 10


def test_a_cache_grows_with_the_tokens_used(model):
    cache = model.new_cache()
    assert cache.size_bytes == 0
    per_token = bytes_per_token(model.config, 4, torch.float32)
    assert per_token == 2 * 4 * 2 * 8 * 4
    for _ in range(100):
        model.forward([SpanStep(cache, rows(2))])
        assert cache.position * per_token <= cache.size_bytes <= (1.25 * cache.position + 64) * per_token


def test_a_failure_in_the_last_block_leaves_every_cache_where_it_was(model, monkeypatch):
    caches = [model.new_cache() for _ in range(2)]
    for cache in caches:
        model.forward([SpanStep(cache, rows(4))])
    broken = pack_linear(torch.zeros(48, 7), None, plain_choice(Form(torch.float32)))
    last = model._blocks[-1]
    monkeypatch.setattr(
        model, "_blocks", (*model._blocks[:-1], replace(last, mlp=replace(last.mlp, down_proj=broken)))
    )
    with pytest.raises(RuntimeError):
        model.forward([SpanStep(cache, rows(1, 9)) for cache in caches])
    assert [cache.position for cache in caches] == [4, 4]
    monkeypatch.undo()
    (output,) = model.forward([SpanStep(caches[0], rows(1, 1))])
    torch.testing.assert_close(output, run(model, rows(4), rows(1, 1))[4:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_come_close_to_fp32(directory, model, dtype):
    narrow = load(directory, dtype)
    assert narrow.weights_bytes == model.weights_bytes // 2
    expected = run(model, rows(9), rows(1, 1))
    actual = run(narrow, rows(9), rows(1, 1))
    assert actual.dtype == dtype
    error = (actual.float() - expected).norm() / expected.norm()
    assert error < (0.03 if dtype == torch.bfloat16 else 0.004)


def rounded(model: SpanModel, quantization) -> SpanModel:
    """The model with the weights that the quantised ones stand for, computed as any other."""
    blocks = []
    for block in model._blocks:
        packed = [
            pack_linear(stands_for(linear.packed[0], quantization), linear.bias, linear.choice)
            for linear in block.linears
        ]
        mlp = replace(block.mlp, gate_up_proj=packed[2], down_proj=packed[3])
        blocks.append(replace(block, qkv_proj=packed[0], o_proj=packed[1], mlp=mlp))
    return SpanModel(model.config, model.span, blocks, model.dtype)


@pytest.mark.parametrize(("quantization", "error"), [("int8", 2e-3), ("int4", 0.05)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_span_computes_with_the_rounded_weights(tmp_path, quantization, error, dtype):
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "attention_bias": True}
    config = write_tiny_model(tmp_path, TinyModel(dtype="bfloat16", overrides=shape))
    whole = Span(0, config.num_blocks)
    exact = load_span(tmp_path, config, whole, dtype=torch.float32)
    few = load_span(tmp_path, config, whole, dtype=dtype, quantization=quantization)
    assert {linear.choice.layout for linear in few.linears} == {quantization}
    given = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    expected, actual = run(rounded(exact, quantization), given, given[:1]), run(few, given, given[:1])
    assert actual.dtype == dtype
    allowed = error if dtype == torch.float32 else max(error, 0.06)
    assert (actual.float() - expected).norm() / expected.norm() < allowed
    assert few.kernels != exact.kernels


@pytest.mark.parametrize("shape", [(3, 47), (0, 48), (48,), (1, 3, 48)])
def test_rows_of_a_wrong_shape_are_refused(model, shape):
    with pytest.raises(UsageError, match=r"\[tokens, 48\]"):
        model.forward([SpanStep(model.new_cache(), torch.zeros(shape))])


def test_two_steps_of_one_session_in_a_batch_are_refused(model):
    cache = model.new_cache()
    with pytest.raises(UsageError, match="Two steps of one session"):
        model.forward([SpanStep(cache, rows(1)), SpanStep(cache, rows(1))])


def test_a_cache_of_other_blocks_is_refused(model):
    with pytest.raises(UsageError, match="cache of 2 blocks"):
        model.forward([SpanStep(model.new_cache(Span(0, 2)), rows(1))])


def test_blocks_outside_the_span_are_refused(directory):
    with pytest.raises(UsageError, match="0:2 are not all in the span 1:3"):
        load(directory, span=Span(1, 3)).new_cache(Span(0, 2))


def test_a_step_past_the_context_is_refused_and_changes_nothing(model):
    cache = model.new_cache()
    model.forward([SpanStep(cache, rows(250))])
    with pytest.raises(ContextOverflow, match="257 tokens exceed the context of 256"):
        model.forward([SpanStep(cache, rows(7))])
    assert cache.position == 250
