"""A span reads its own tensors and no others, checks them, and says what is wrong with a file."""

import json
import struct
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm.errors import BrokenModel, ManifestMismatch, UnsupportedModel, UsageError
from swarm.model import checkpoint
from swarm.model.architectures.registry import SUPPORTED_MODEL_TYPES
from swarm.model.config import ModelConfig, read_config
from swarm.model.head import Head
from swarm.model.linear.linear import pack_linear
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import (
    block_tensor_names,
    build_manifest,
    head_size_bytes,
    load_head,
    load_span,
    span_size_bytes,
)
from swarm.security.manifest import Manifest, differences
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

SPAN = Span(1, 3)
O_PROJ = "model.layers.2.self_attn.o_proj.weight"


@pytest.fixture
def directory(tmp_path) -> Path:
    write_tiny_model(tmp_path, TinyModel(family="qwen3", overrides={"attention_bias": True}))
    return tmp_path


def load(directory: Path, manifest: Manifest | None = None) -> SpanModel:
    return load_span(directory, read_config(directory), SPAN, dtype=torch.float32, manifest=manifest)


def output(model: SpanModel) -> torch.Tensor:
    rows = torch.randn(4, 48, generator=torch.Generator().manual_seed(1))
    return model.forward([SpanStep(model.new_cache(), rows)])[0]


def rewrite(directory: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(directory / "model.safetensors") | change
    save_file(
        {name: each for name, each in tensors.items() if each is not None}, directory / "model.safetensors"
    )


def header_of(path: Path) -> tuple[int, dict[str, dict[str, list[int]]]]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return 8 + length, json.loads(data[8 : 8 + length])


def test_bytes_of_other_tensors_are_never_read(directory, monkeypatch):
    read = []
    real = checkpoint._read_bytes
    monkeypatch.setattr(checkpoint, "_read_bytes", lambda info, *rest: (read.append(info), real(info, *rest)))
    load(directory)
    start, header = header_of(directory / "model.safetensors")
    wanted = {name: header[name]["data_offsets"] for name in block_tensor_names(read_config(directory), SPAN)}
    assert len(wanted) == 2 * 15
    assert sorted([info.offset - start, info.offset - start + info.size_bytes] for info in read) == sorted(
        wanted.values()
    )


def test_a_format_that_is_not_supported_does_not_matter_in_other_tensors(directory):
    expected = output(load(directory))
    rewrite(directory, {"model.layers.0.self_attn.position_ids": torch.zeros(4, dtype=torch.int64)})
    assert torch.equal(output(load(directory)), expected)


def test_damage_to_other_tensors_does_not_matter_even_with_a_manifest(directory):
    manifest, expected = build_manifest(directory), output(load(directory))
    rewrite(directory, {"model.layers.0.mlp.up_proj.weight": torch.full((80, 48), torch.nan)})
    assert torch.equal(output(load(directory, manifest)), expected)


def test_a_peer_with_only_the_shards_of_its_blocks_loads_them(tmp_path):
    config = write_tiny_model(tmp_path, TinyModel(shards=1))
    expected = output(load(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    mine = block_tensor_names(config, SPAN)
    save_file({name: tensors[name] for name in mine}, tmp_path / "mine.safetensors")
    weight_map = {name: "mine.safetensors" if name in mine else "others.safetensors" for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(output(load(tmp_path)), expected)
    with pytest.raises(BrokenModel, match=r"others\.safetensors, which holds the tensor .* is missing"):
        load_span(tmp_path, config, Span(0, 1), dtype=torch.float32)


def test_no_tensor_keeps_the_file_mapped(directory):
    model = load(directory)
    head = load_head(directory, read_config(directory), dtype=torch.float32)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "model.safetensors" not in maps.read_text()
    expected = output(model)
    path = directory / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(output(model), expected)
    assert head.embed([1]).abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sizes_are_known_before_loading(directory, dtype):
    config = read_config(directory)
    assert load_span(directory, config, SPAN, dtype=dtype).weights_bytes == span_size_bytes(
        config, SPAN, dtype
    )
    assert load_head(directory, config, dtype=dtype).weights_bytes == head_size_bytes(config, dtype)


@pytest.mark.parametrize("family", SUPPORTED_MODEL_TYPES)
def test_sizes_of_every_family_are_known_before_loading(tmp_path, family):
    few = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = write_tiny_model(tmp_path, TinyModel(family=family, overrides={"sliding_window": 8, **few}))
    model = load_span(tmp_path, config, SPAN, dtype=torch.float32)
    assert model.weights_bytes == span_size_bytes(config, SPAN, torch.float32)
    head = load_head(tmp_path, config, dtype=torch.float32, manifest=build_manifest(tmp_path))
    assert head.weights_bytes == head_size_bytes(config, torch.float32)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("hidden", [64, 48])  # 48 inputs do not suit 4 bits
def test_quantised_sizes_are_known_before_loading(tmp_path, quantization, hidden):
    config = write_tiny_model(tmp_path, TinyModel(overrides={"hidden_size": hidden}))
    for dtype in (torch.float32, torch.bfloat16):
        model = load_span(tmp_path, config, SPAN, dtype=dtype, quantization=quantization)
        zeros = sum(4 * linear.shape.outputs for linear in model.linears)  # which not every layout has
        expected = span_size_bytes(config, SPAN, dtype, quantization)
        assert expected - zeros <= model.weights_bytes <= expected


def test_a_quantised_model_is_a_half_and_a_third_of_one_in_16_bits():
    config = ModelConfig("llama", 32, 4096, 14_336, 32, 8, 128, 128_256, 1e-5, 8192)
    whole = span_size_bytes(config, Span(0, 32), torch.bfloat16)
    assert span_size_bytes(config, Span(0, 32), torch.bfloat16, "int8") < 0.51 * whole
    assert span_size_bytes(config, Span(0, 32), torch.bfloat16, "int4") < 0.32 * whole


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_span_is_never_held_whole_in_16_bits_while_it_is_quantised(tmp_path, quantization, monkeypatch):
    config = write_tiny_model(tmp_path, TinyModel(num_blocks=4, overrides={"hidden_size": 64}))
    weights: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def pack(weight, *arguments):
        nonlocal most
        weights.append(weakref.ref(weight))
        most = max(most, sum(each() is not None for each in weights))
        return pack_linear(weight, *arguments)

    monkeypatch.setattr("swarm.model.weights.pack_linear", pack)
    load_span(tmp_path, config, Span(0, 4), dtype=torch.bfloat16, quantization=quantization)
    assert (len(weights), most) == (16, 1)


def test_tied_embeddings_take_memory_once(tmp_path):
    config = write_tiny_model(tmp_path, TinyModel(overrides={"tie_word_embeddings": True}))
    head = load_head(tmp_path, config, dtype=torch.float32)
    assert head.weights_bytes == head_size_bytes(config, torch.float32) == (259 + 1) * 48 * 4


def test_progress_ends_at_the_whole(directory):
    seen = []
    config = read_config(directory)
    load_span(
        directory,
        config,
        SPAN,
        dtype=torch.bfloat16,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    total = span_size_bytes(config, SPAN, torch.bfloat16)
    assert seen[-1] == (total, total)
    assert seen == sorted(set(seen))


def test_a_span_outside_the_model_is_refused(directory):
    with pytest.raises(UsageError, match="2:9 is outside"):
        load_span(directory, read_config(directory), Span(2, 9), dtype=torch.float32)


def test_a_missing_tensor_is_named_with_its_file(directory):
    rewrite(directory, {O_PROJ: None})
    with pytest.raises(
        BrokenModel, match=rf"tensor {O_PROJ} is missing from .*model\.safetensors.*model verify"
    ):
        load(directory)


def test_a_tensor_of_a_wrong_shape_is_named_with_both_shapes(directory):
    rewrite(directory, {O_PROJ: torch.zeros(48, 47)})
    with pytest.raises(BrokenModel, match=rf"{O_PROJ} in .* has the shape \[48, 47\] .* \[48, 48\]"):
        load(directory)


def test_a_tensor_of_an_unknown_format_is_named(directory):
    rewrite(directory, {O_PROJ: torch.zeros(48, 48, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match=f"{O_PROJ} in .* stored as I8"):
        load(directory)


def test_a_file_that_ends_within_a_tensor_is_named_with_it(directory):
    path = directory / "model.safetensors"
    start, header = header_of(path)
    path.write_bytes(path.read_bytes()[: start + header[O_PROJ]["data_offsets"][1] - 1])
    with pytest.raises(BrokenModel, match=r"model\.safetensors ends before the tensor .* does.*model pull"):
        load(directory)


@pytest.mark.parametrize("kept_bytes", [0, 5, 100])
def test_a_file_that_ends_within_its_header_is_named(directory, kept_bytes):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(BrokenModel, match=r"model\.safetensors"):
        load(directory)


@pytest.mark.parametrize(
    "change", [{"data_offsets": [0, 3]}, {"shape": [-1]}, {"shape": "x"}, {"data_offsets": [5]}]
)
def test_a_header_that_contradicts_itself_is_broken(directory, change):
    path = directory / "model.safetensors"
    start, header = header_of(path)
    header[O_PROJ].update(change)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + path.read_bytes()[start:])
    with pytest.raises(BrokenModel, match=f"damaged at the tensor {O_PROJ}"):
        load(directory)


def test_a_directory_without_safetensors_says_that_nothing_else_is_read(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(BrokenModel, match="no other format is read"):
        load(directory)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", 3])
def test_an_index_that_points_outside_the_directory_is_refused(directory, file):
    index = {"weight_map": {O_PROJ: file}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BrokenModel, match="not a file name"):
        load(directory)


def test_one_changed_value_is_refused_naming_the_tensor_and_both_digests(directory):
    manifest = build_manifest(directory)
    changed = load_file(directory / "model.safetensors")[O_PROJ].clone()
    changed[0, 0] += 1
    rewrite(directory, {O_PROJ: changed})
    actual = build_manifest(directory)
    assert [each.part for each in differences(manifest, actual)] == [O_PROJ]
    with pytest.raises(ManifestMismatch) as caught:
        load(directory, manifest)
    for part in (O_PROJ, manifest.tensors[O_PROJ], actual.tensors[O_PROJ]):
        assert part in str(caught.value)


def test_a_changed_config_is_refused_by_the_manifest(directory):
    manifest = build_manifest(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    with pytest.raises(ManifestMismatch, match=r"config\.json has the digest"):
        load(directory, manifest)


def test_the_digest_does_not_depend_on_the_layout_of_the_files(tmp_path):
    model = TinyModel(overrides={"tie_word_embeddings": True})
    write_tiny_model(tmp_path / "one", model)
    write_tiny_model(tmp_path / "three", TinyModel(shards=3, overrides=model.overrides))
    one, three = build_manifest(tmp_path / "one"), build_manifest(tmp_path / "three")
    assert not (tmp_path / "three" / "model.safetensors").exists()
    assert one == three
    assert one.digest == three.digest
    embedding = load_file(tmp_path / "one" / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(tmp_path / "one", {"lm_head.weight": embedding.clone()})  # the same once more
    assert build_manifest(tmp_path / "one").digest == one.digest


def test_the_digest_tells_seeds_formats_and_tokenizers_apart(tmp_path):
    digests = set()
    for index, model in enumerate([TinyModel(), TinyModel(seed=1), TinyModel(dtype="bfloat16")]):
        write_tiny_model(tmp_path / str(index), model)
        digests.add(build_manifest(tmp_path / str(index)).digest)
    (tmp_path / "0" / "chat_template.jinja").write_text("{{ messages }}")
    digests.add(build_manifest(tmp_path / "0").digest)
    assert len(digests) == 4


def test_the_digest_ignores_how_json_is_written(directory):
    expected = build_manifest(directory).digest
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        data = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(dict(reversed(data.items()))))
    assert build_manifest(directory).digest == expected


def test_building_a_manifest_tells_its_progress(directory):
    seen = []
    build_manifest(directory, lambda done, total: seen.append((done, total)))
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(tensor.nbytes for tensor in load_file(directory / "model.safetensors").values())
    )


def test_the_head_refuses_a_token_id_outside_the_vocabulary(directory):
    head: Head = load_head(directory, read_config(directory), dtype=torch.float32)
    for token_id in (-1, 259):
        with pytest.raises(Exception, match=f"token id {token_id} ") as caught:
            head.embed([0, token_id])
        assert caught.value.code == "bad_request"


def test_the_heads_logits_are_fp32_in_every_format(directory):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        head = load_head(directory, read_config(directory), dtype=dtype)
        logits = head.logits(head.embed([1, 2, 3]))
        assert logits.dtype == torch.float32
        assert logits.shape == (3, 259)


def test_an_index_and_a_file_beside_it_that_differ_are_told(tmp_path):
    write_tiny_model(tmp_path, TinyModel(shards=2))
    digest = build_manifest(tmp_path).digest
    write_tiny_model(tmp_path, TinyModel())
    assert build_manifest(tmp_path).digest == digest  # two copies of one model
    write_tiny_model(tmp_path, TinyModel(seed=1))
    with pytest.raises(BrokenModel, match=r"two models: the tensor .* in model\.safetensors"):
        build_manifest(tmp_path)
