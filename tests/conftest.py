"""Models for the tests: the embedded one, and a tiny GGUF file."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from swarm.config import store_root
from swarm.model import store


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of smollm2-135m, pulled if need be; without it the test fails with the reason."""
    return store.pull("smollm2-135m", store_root())


TINY_HIDDEN, TINY_HEADS, TINY_KV_HEADS, TINY_HEAD_DIM, TINY_MLP = 32, 4, 2, 8, 64
TINY_BLOCKS = 2
CHAT_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def tiny_gguf_tensors(architecture: str, vocab_size: int) -> dict[str, np.ndarray]:
    """Random tensors under GGUF's names, in Hugging Face's order of rows."""
    rng = np.random.default_rng(7)
    query, key = TINY_HEADS * TINY_HEAD_DIM, TINY_KV_HEADS * TINY_HEAD_DIM
    shapes = {"token_embd.weight": (vocab_size, TINY_HIDDEN), "output_norm.weight": (TINY_HIDDEN,)}
    for block in range(TINY_BLOCKS):
        shapes |= {
            f"blk.{block}.attn_norm.weight": (TINY_HIDDEN,),
            f"blk.{block}.attn_q.weight": (query, TINY_HIDDEN),
            f"blk.{block}.attn_k.weight": (key, TINY_HIDDEN),
            f"blk.{block}.attn_v.weight": (key, TINY_HIDDEN),
            f"blk.{block}.attn_output.weight": (TINY_HIDDEN, query),
            f"blk.{block}.ffn_norm.weight": (TINY_HIDDEN,),
            f"blk.{block}.ffn_gate.weight": (TINY_MLP, TINY_HIDDEN),
            f"blk.{block}.ffn_up.weight": (TINY_MLP, TINY_HIDDEN),
            f"blk.{block}.ffn_down.weight": (TINY_HIDDEN, TINY_MLP),
        }
        if architecture == "qwen2":
            sizes = {"q": query, "k": key, "v": key}
            shapes |= {f"blk.{block}.attn_{part}.bias": (size,) for part, size in sizes.items()}
        if architecture == "qwen3":
            shapes |= {f"blk.{block}.attn_{part}_norm.weight": (TINY_HEAD_DIM,) for part in "qk"}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def tiny_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their llama.cpp types and the merges of a byte-level tokenizer for any text."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "Ġt", "he", "Ġthe"]
    types = [3, 3, 3] + [1] * (len(tokens) - 3)
    return tokens, types, ["Ġ t", "h e", "Ġt he"]


class TinyGguf:
    """Writes a small GGUF file; what a test wants different it changes before `write`."""

    def __init__(self, architecture: str = "llama") -> None:
        self.architecture = architecture
        self.tokens, self.types, self.merges = tiny_vocabulary()
        self.pre = "smollm" if architecture == "llama" else "qwen2"
        self.tokenizer_model = "gpt2"
        self.tensors = tiny_gguf_tensors(architecture, len(self.tokens))
        self.quantised: gguf.GGMLQuantizationType | None = None
        self.extra: dict[str, object] = {}
        self.add_bos = False

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        self._write_shape(writer)
        self._write_tokenizer(writer)
        for key, value in self.extra.items():
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        for name, tensor in self.tensors.items():
            stored = permute(name, tensor) if self.architecture == "llama" else tensor
            if self.quantised is not None and tensor.ndim == 2:
                packed = gguf.quantize(stored, self.quantised)
                writer.add_tensor(name, packed, raw_dtype=self.quantised)
            else:
                writer.add_tensor(name, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _write_shape(self, writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(TINY_BLOCKS)
        writer.add_context_length(128)
        writer.add_embedding_length(TINY_HIDDEN)
        writer.add_feed_forward_length(TINY_MLP)
        writer.add_head_count(TINY_HEADS)
        writer.add_head_count_kv(TINY_KV_HEADS)
        writer.add_key_length(TINY_HEAD_DIM)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)

    def _write_tokenizer(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.tokenizer_model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(self.add_bos)
        writer.add_chat_template(CHAT_TEMPLATE)


def permute(name: str, weights: np.ndarray) -> np.ndarray:
    """Rows of q and k from Hugging Face's order to GGUF's: `permute` of llama.cpp's converter."""
    for part, heads in (("attn_q.weight", TINY_HEADS), ("attn_k.weight", TINY_KV_HEADS)):
        if part in name:
            halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
            return halves.swapaxes(1, 2).reshape(weights.shape)
    return weights


@pytest.fixture
def tiny_gguf() -> type[TinyGguf]:
    """The class that writes small GGUF files."""
    return TinyGguf
