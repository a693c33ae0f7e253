"""A model's files that were made to take time or memory, or to crash: each ends in an error that names it."""

import json
import os
import shutil
import struct
from pathlib import Path

import gguf
import pytest
import torch

from swarm.errors import BrokenModel, UnsupportedModel
from swarm.model.config import read_config, read_generation_defaults
from swarm.model.gguf import convert_gguf
from swarm.model.hub import shard_files
from swarm.model.ranges import RANGES
from swarm.model.tokenizer import load_tokenizer
from swarm.model.weights import build_manifest, check_files, load_head, load_span, tokenizer_digests
from swarm.security.manifest import load_manifest
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

READERS = {
    "config.json": read_config,
    "generation_config.json": read_generation_defaults,
    "tokenizer.json": load_tokenizer,
    "tokenizer_config.json": load_tokenizer,
    "special_tokens_map.json": load_tokenizer,
    "chat_template.jinja": load_tokenizer,
    "model.safetensors": build_manifest,
    "model.safetensors.index.json": shard_files,
    "swarm-manifest.json": load_manifest,
}
JSON_FILES = [name for name in READERS if name.endswith(".json")]


@pytest.fixture
def directory(tmp_path) -> Path:
    write_tiny_model(tmp_path / "model", TinyModel())
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    config.pop("added_tokens_decoder", None)
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path / "model"


def edit(directory: Path, name: str, **changes: object) -> Path:
    path = directory / name
    fields = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**fields, **changes}))
    return directory


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_where_a_file_belongs(name, make, directory):
    (directory / name).unlink(missing_ok=True)
    make(directory / name)
    with pytest.raises(BrokenModel, match=name.replace(".", r"\.")):
        READERS[name](directory)


@pytest.mark.parametrize("name", JSON_FILES)
def test_json_that_is_too_deep_is_a_broken_model(name, directory):
    (directory / name).write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(BrokenModel, match="64 deep"):
        READERS[name](directory)


@pytest.mark.parametrize("name", [name for name in READERS if name != "model.safetensors"])
def test_a_file_without_end_is_refused_unread(name, directory):
    with (directory / name).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BrokenModel, match="1,099,511,627,776 bytes"):
        READERS[name](directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_hashing_a_tokenizer_reads_no_more_than_using_it(name, directory):
    with (directory / name).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BrokenModel, match=name):
        tokenizer_digests(directory)


NUMBERS = {
    "config.json": [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "partial_rotary_factor",
        "bos_token_id",
        "eos_token_id",
    ],
    "generation_config.json": ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"],
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in NUMBERS for field in NUMBERS[name]])
@pytest.mark.parametrize("value", [10**9 * 10**400, -2, float("nan"), float("inf"), 1e300])
def test_a_number_out_of_its_range_is_named_with_range_and_file(name, field, value, directory):
    edit(directory, name, **{field: value, "do_sample": True})
    with pytest.raises(BrokenModel, match=rf"{field} in .*{name} is .* from [\d,.e-]+ to [\d,.e+]+"):
        READERS[name](directory)


@pytest.mark.parametrize(
    "field",
    ["factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale"],
)
@pytest.mark.parametrize("value", [10**400, -1, float("nan")])
def test_a_rotary_number_out_of_its_range_is_named(field, value, directory):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, field: value}
    with pytest.raises(BrokenModel, match=rf"rope_scaling\.{field} in "):
        read_config(edit(directory, "config.json", rope_scaling=scaling))


@pytest.mark.parametrize(("field", "value"), [("beta_fast", 5e-324), ("beta_slow", 1e-7), ("factor", 0)])
def test_what_a_formula_cannot_divide_by_is_refused(field, value, directory):
    scaling = {"rope_type": "yarn", "factor": 4.0, field: value}
    with pytest.raises(BrokenModel, match=field):
        read_config(edit(directory, "config.json", rope_scaling=scaling))


def test_the_largest_blocks_that_are_allowed_take_no_memory_by_themselves(directory):
    most = int(RANGES["num_hidden_layers"].most)
    config = read_config(
        edit(directory, "config.json", model_type="mistral", sliding_window=8, num_hidden_layers=most)
    )
    assert len(config.windows) == most


def test_heads_that_are_within_range_one_by_one_may_be_too_wide_together(directory):
    changes = {"num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 4096}
    with pytest.raises(BrokenModel, match=r"num_attention_heads .* more than 262,144 in all"):
        read_config(edit(directory, "config.json", **changes))


def test_no_end_of_token_ids_is_refused(directory):
    with pytest.raises(BrokenModel, match=r"eos_token_id .* list of at most 256"):
        read_config(edit(directory, "config.json", eos_token_id=list(range(257))))


def test_memory_is_taken_only_for_tensors_that_the_file_has(directory, monkeypatch):
    config = read_config(edit(directory, "config.json", hidden_size=2**17, intermediate_size=2**20))
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: pytest.fail(f"memory for {shape}"))
    with pytest.raises(BrokenModel, match="has the shape"):
        load_span(directory, config, Span(0, 1), dtype=torch.float32)
    with pytest.raises(BrokenModel, match="has the shape"):
        load_head(directory, config, dtype=torch.float32)


def write_header(path: Path, header: bytes, claimed: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if claimed is None else claimed) + header + bytes(64))


def test_a_header_longer_than_any_model_needs_is_refused_unread(directory):
    path = directory / "model.safetensors"
    write_header(path, b"", claimed=2**30)
    with path.open("r+b") as file:
        file.truncate(2**31)
    with pytest.raises(BrokenModel, match="header has 1,073,741,824 bytes"):
        check_files(directory, read_config(directory), Span(0, 1))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**300], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [7] * 500_000, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**300]},
        {"dtype": "F32", "shape": [1], "data_offsets": list(range(500_000))},
        {"dtype": "F" * 900, "shape": [1], "data_offsets": [0, 4]},
    ],
    ids=["size", "dimensions", "offset", "offsets", "dtype"],
)
def test_a_header_of_absurd_numbers_is_refused_shortly(entry, directory):
    name = "model.layers.0.input_layernorm.weight"
    write_header(directory / "model.safetensors", json.dumps({name: entry}).encode())
    with pytest.raises((BrokenModel, UnsupportedModel)) as caught:
        check_files(directory, read_config(directory), Span(0, 1))
    assert len(str(caught.value)) < 600


def test_a_header_that_is_too_deep_is_broken(directory):
    write_header(directory / "model.safetensors", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(BrokenModel, match="64 deep"):
        check_files(directory, read_config(directory), Span(0, 1))


@pytest.mark.parametrize("file", ["..", ".", "", "a\0b", "x" * 5000])
def test_an_index_that_names_no_file_is_broken(file, directory):
    weight_map = {"model.layers.0.input_layernorm.weight": file}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BrokenModel):
        check_files(directory, read_config(directory), Span(0, 1))


@pytest.mark.parametrize(
    "template", [7, ["x"], [{"name": ["x"], "template": "x"}], [{"name": "x", "template": 7}]]
)
def test_a_chat_template_that_is_no_text_is_broken(template, directory):
    with pytest.raises(BrokenModel, match="chat_template"):
        load_tokenizer(edit(directory, "tokenizer_config.json", chat_template=template))


def test_a_chat_template_that_is_not_utf8_is_broken(directory):
    (directory / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BrokenModel, match="chat_template"):
        load_tokenizer(directory)


GGUF_HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"
ARRAY, TEXT, BYTE = struct.pack("<I", 9), struct.pack("<I", 8), struct.pack("<I", 0)
MUCH = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (struct.pack("<QQ", 0, 1) + KEY + ARRAY + (ARRAY + struct.pack("<Q", 1)) * 100_000, "unknown kind 9"),
        (struct.pack("<QQ", 0, 1) + KEY + ARRAY + BYTE + MUCH, "more than 4,194,304 items"),
        (struct.pack("<QQ", 0, 1) + KEY + ARRAY + TEXT + MUCH, "more than 4,194,304 items"),
        (struct.pack("<QQ", 0, 1) + KEY + TEXT + MUCH, "a text in it claims"),
        (struct.pack("<QQ", 0, 2**62), "fields"),
        (struct.pack("<QQ", 2**62, 0), "tensors"),
        (struct.pack("<QQ", 1, 0) + KEY + struct.pack("<I", 2**31), "dimensions"),
        (struct.pack("<QQ", 0, 1) + KEY + ARRAY + BYTE + struct.pack("<Q", 2**22), "ends within its header"),
    ],
)
def test_a_gguf_header_that_claims_more_than_there_is_is_refused(content, what, tmp_path):
    (tmp_path / "x.gguf").write_bytes(GGUF_HEAD + content)
    with pytest.raises(BrokenModel, match=what):
        convert_gguf(tmp_path / "x.gguf", tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("add_block_count", 10**9),
        ("add_head_count", 0),
        ("add_head_count", 5),
        ("add_context_length", 2**32 - 1),
        ("add_layer_norm_rms_eps", float("nan")),
        ("add_rope_freq_base", 0.0),
        ("add_bos_token_id", 2**31),
        ("add_token_list", [1] * 262),
    ],
)
def test_a_gguf_file_with_a_senseless_field_is_refused(key, value, tiny_gguf, tmp_path, monkeypatch):
    write = getattr(gguf.GGUFWriter, key)
    monkeypatch.setattr(gguf.GGUFWriter, key, lambda self, _: write(self, value))
    path = tiny_gguf().write(tmp_path / "tiny.gguf")
    (tmp_path / "out").mkdir()
    with pytest.raises(BrokenModel):
        convert_gguf(path, tmp_path / "out")


def test_what_is_no_file_is_no_gguf_file(tmp_path):
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(Exception, match="There is no file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)


def test_a_good_model_is_still_good(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "copy")
    config = read_config(tmp_path / "copy")
    check_files(tmp_path / "copy", config, Span(0, config.num_blocks))
    assert load_tokenizer(tmp_path / "copy").encode("hello")
