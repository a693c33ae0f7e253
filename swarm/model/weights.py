"""From a model directory to tensors in memory: a span's blocks, or the head, and nothing else.

Names and shapes follow from the config, so sizes are known before anything is read. q, k and v (and
gate and up) are read straight into their places in one matrix; what is needed beyond the weights
themselves is at most one tensor in its stored format.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from swarm.errors import BrokenModel, ManifestMismatch
from swarm.memory import room_for
from swarm.model.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, has_both_layouts
from swarm.model.checkpoint import Shape as TensorShape
from swarm.model.config import ModelConfig, read_config
from swarm.model.dtypes import dtype_name
from swarm.model.fields import MAX_TOKENIZER_BYTES, read_fields, read_text
from swarm.model.head import Head
from swarm.model.layers import Norm, activation_of
from swarm.model.linear.choice import Form, KernelChoice, Shape, form_of
from swarm.model.linear.chooser import Chooser, PlainChooser
from swarm.model.linear.layouts import Quantization
from swarm.model.linear.linear import Linear, pack_linear
from swarm.model.linear.quantized import INT4_BYTES_PER_WEIGHT, INT8_BYTES_PER_OUTPUT
from swarm.model.mlp import Mixture, Mlp
from swarm.model.span import BlockWeights, SpanModel
from swarm.model.tokenizer_file import named_beside
from swarm.model.tokenizer_source import OLDER_FILES
from swarm.security.foreign import read_bounded
from swarm.security.manifest import Manifest
from swarm.values import Span

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
FINAL_NORM_BIAS = "model.norm.bias"
LM_HEAD = "lm_head.weight"
_MORE_MEMORY = "Close other programs, or use a machine or container with more memory."


def load_span(
    directory: Path,
    config: ModelConfig,
    span: Span,
    *,
    dtype: torch.dtype,
    quantization: Quantization = "none",
    chooser: Chooser | None = None,
    manifest: Manifest | None = None,
    on_progress: Progress | None = None,
) -> SpanModel:
    """Load the blocks of a span, checking each tensor against the manifest where one is given.

    Each weight is packed, and quantised if that is wanted, as soon as it is read. `chooser` says which
    kernels it gets; the plain ones without one.

    Raises `UsageError` for a span outside the model, `BrokenModel` and `ManifestMismatch` for files
    that are not what they should be, `DoesNotFit` when there is not enough memory.
    """
    config.check_span(span)
    check_config(config, manifest)
    form = Form(dtype, quantization)
    needed_bytes = span_size_bytes(config, span, dtype, quantization)
    check_files(directory, config, span)  # a shape that no file has needs no memory

    def fix(free_bytes: int) -> str:
        fitting = free_bytes * len(span) // needed_bytes
        return f"There is room for {fitting}: fewer blocks, a narrower number format, or more memory will do."

    with room_for(f"Blocks {span} in {dtype_name(dtype)}", needed_bytes, fix):
        choices = (chooser or PlainChooser()).choose(linear_shapes(config), form)
        loader = _Loader(Checkpoint(directory), dtype, manifest, needed_bytes, on_progress)
        blocks = [_load_block(loader, config, block, choices) for block in span]
        return SpanModel(config, span, blocks, dtype, quantization)


def check_files(directory: Path, config: ModelConfig, span: Span) -> None:
    """Look whether the files hold the tensors of a span, by their headers. Raises `BrokenModel`."""
    checkpoint = Checkpoint(directory)
    for block in span:
        for name, shape in block_tensors(config, block).items():
            checkpoint.info(name, shape)


def load_head(
    directory: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    chooser: Chooser | None = None,
    manifest: Manifest | None = None,
) -> Head:
    """Load embedding, final norm and lm_head. Raises as `load_span` does.

    An lm_head that is the embedding once more stays legible, so that there is one copy of it.
    """
    check_config(config, manifest)
    needed_bytes = head_size_bytes(config, dtype)
    with room_for(f"The ends of the model in {dtype_name(dtype)}", needed_bytes, lambda _: _MORE_MEMORY):
        return _load_head(directory, config, dtype, chooser or PlainChooser(), manifest)


def _load_head(
    directory: Path, config: ModelConfig, dtype: torch.dtype, chooser: Chooser, manifest: Manifest | None
) -> Head:
    shapes = head_tensors(config)
    checkpoint = _open_ends(directory, config)
    loader = _Loader(checkpoint, dtype, manifest, head_size_bytes(config, dtype), None)
    embed_tokens = loader.tensor(EMBEDDING, shapes[EMBEDDING])
    norm = loader.norm(FINAL_NORM.removesuffix(".weight"), shapes, config)
    tied = LM_HEAD not in manifest.tensors if manifest else _are_tied(checkpoint, config)
    weight = embed_tokens if tied else loader.tensor(LM_HEAD, shapes[EMBEDDING])
    shape = Shape(*weight.shape)
    choice = chooser.choose([shape], Form(dtype, legible=tied))[shape]
    lm_head = pack_linear(weight, None, choice)
    return Head(config, lm_head.packed[0] if tied else embed_tokens, norm, lm_head)


def _open_ends(directory: Path, config: ModelConfig) -> Checkpoint:
    """The checkpoint, with the embedding where it is: tied ends may be stored as the lm_head alone."""
    checkpoint = Checkpoint(directory)
    if config.tie_word_embeddings and not checkpoint.has(EMBEDDING) and checkpoint.has(LM_HEAD):
        checkpoint.read_instead(EMBEDDING, LM_HEAD)
    return checkpoint


def _are_tied(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    """Whether the lm_head is the embedding once more: not where the files have another one."""
    if not config.tie_word_embeddings or not checkpoint.has(LM_HEAD):
        return config.tie_word_embeddings
    table = head_tensors(config)[EMBEDDING]
    return checkpoint.digest(LM_HEAD, table) == checkpoint.digest(EMBEDDING, table)


def block_tensors(config: ModelConfig, block: int) -> dict[str, TensorShape]:
    """Names and shapes of one block's tensors, as Hugging Face has them."""
    names, hidden = config.design.names, config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = _norm_shapes(config)
    projections: list[_Projection] = [
        (names.qkv, [queries, keys, keys], hidden, config.qkv_bias),
        ((names.output,), [hidden], queries, config.output_bias),
    ]
    for gate_up, down, width in mlp_names(config):
        inner = [width] * (1 + config.design.gated_mlp)
        projections += [
            (gate_up, inner, hidden, config.mlp_bias),
            ((down,), [hidden], width, config.mlp_bias),
        ]
    for parts, outputs, inputs, has_bias in projections:
        for name, rows in zip(parts, outputs if len(parts) > 1 else [sum(outputs)], strict=True):
            shapes[f"{name}.weight"] = (rows, inputs)
            if has_bias:
                shapes[f"{name}.bias"] = (rows,)
    if (experts := config.design.experts) is not None:
        shapes[f"{experts.place}.gate.weight"] = (experts.count, hidden)
        if experts.shared_width:
            shapes[f"{experts.place}.shared_expert_gate.weight"] = (1, hidden)
    return {f"model.layers.{block}.{name}": shape for name, shape in shapes.items()}


_Projection = tuple[
    tuple[str, ...], list[int], int, bool
]  # names, rows of each, columns, whether with biases


def mlp_names(config: ModelConfig) -> list[tuple[tuple[str, ...], str, int]]:
    """For each MLP of a block, the one or the experts, the shared one last: gate and up, down, and width."""
    names, experts = config.design.names, config.design.experts
    if experts is None:
        return [(names.gate_up, names.down, config.intermediate_size)]
    places = [(f"{experts.place}.experts.{index}", experts.width) for index in range(experts.count)]
    if experts.shared_width:
        places.append((f"{experts.place}.shared_expert", experts.shared_width))
    return [
        (tuple(f"{place}.{name}" for name in experts.gate_up), f"{place}.{experts.down}", width)
        for place, width in places
    ]


def _norm_shapes(config: ModelConfig) -> dict[str, TensorShape]:
    """Names and shapes of a block's norms, with their biases."""
    names, whole = config.design.names, config.design.whole_qk_norm
    around = (names.input_norm, names.attention_out_norm, names.mlp_norm, names.mlp_out_norm)
    widths = {name: config.hidden_size for name in around if name}
    if config.qk_norm:
        widths[names.q_norm] = config.head_dim * (config.num_heads if whole else 1)
        widths[names.k_norm] = config.head_dim * (config.num_kv_heads if whole else 1)
    parts = ("weight", "bias") if config.design.norm == "layer biased" else ("weight",)
    return {f"{name}.{part}": (width,) for name, width in widths.items() for part in parts}


def head_tensors(config: ModelConfig) -> dict[str, TensorShape]:
    """Names and shapes of the tensors outside the blocks, as the config has them."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, TensorShape] = {EMBEDDING: table, FINAL_NORM: (config.hidden_size,)}
    if config.design.norm == "layer biased":
        shapes[FINAL_NORM_BIAS] = (config.hidden_size,)
    return shapes if config.tie_word_embeddings else {**shapes, LM_HEAD: table}


def block_tensor_names(config: ModelConfig, span: Span) -> list[str]:
    """Names of all tensors of a span."""
    return [name for block in span for name in block_tensors(config, block)]


def linear_shapes(config: ModelConfig) -> list[Shape]:
    """Of the linear layers of every block: q, k, v stacked; o; and of each MLP gate, up stacked; down."""
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [
        Shape(queries + 2 * keys, hidden),
        Shape(hidden, queries),
        *(
            shape
            for _, _, width in mlp_names(config)
            for shape in (Shape((1 + config.design.gated_mlp) * width, hidden), Shape(hidden, width))
        ),
    ]


def span_size_bytes(
    config: ModelConfig, span: Span, dtype: torch.dtype, quantization: Quantization = "none"
) -> int:
    """Memory that the weights of a span take, known before a byte is read."""
    whole = _size_bytes(block_tensors(config, 0).values(), dtype)
    saved = sum(
        shape.outputs * shape.inputs * dtype.itemsize - _quantized_bytes(shape, Form(dtype, quantization))
        for shape in linear_shapes(config)
    )
    return len(span) * (whole if quantization == "none" else whole - saved)


def _quantized_bytes(shape: Shape, form: Form) -> int:
    if form_of(shape, form).quantization == "int4":
        return int(shape.outputs * shape.inputs * INT4_BYTES_PER_WEIGHT)
    return shape.outputs * (shape.inputs + INT8_BYTES_PER_OUTPUT)


def head_size_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory that the weights of the head take."""
    return _size_bytes(head_tensors(config).values(), dtype)


def check_config(config: ModelConfig, manifest: Manifest | None) -> None:
    """Raise `ManifestMismatch` unless the config is the one that the manifest names."""
    digest = config_digest(config)
    if manifest is not None and digest != manifest.config:
        raise ManifestMismatch(
            f"config.json has the digest {digest} where the manifest names {manifest.config}",
            "It is another model, or it was changed: fetch it again with `swarm model pull`.",
        )


def config_digest(config: ModelConfig) -> str:
    """SHA-256 of what the config decides."""
    return hashlib.sha256(config.canonical()).hexdigest()


def build_manifest(
    directory: Path, on_progress: Progress | None = None, only: Collection[str] | None = None
) -> Manifest:
    """Hash everything that makes a model what it is, tensor by tensor. Needs all of its files, or those with
    `only` some of its tensors; what comes out is then a part of its manifest.

    Tensors that are not computed with (a second copy of tied embeddings, say) do not count.
    """
    config = read_config(directory)
    checkpoint = _open_ends(directory, config)
    shapes = head_tensors(config)
    if only is not None or not _are_tied(checkpoint, config):
        shapes[LM_HEAD] = shapes[EMBEDDING]
    for block in range(config.num_blocks):
        shapes |= block_tensors(config, block)
    if only is not None:
        shapes = {name: shape for name, shape in shapes.items() if name in only}
    total = sum(checkpoint.info(name, shape).size_bytes for name, shape in shapes.items())
    done, digests = 0, {}
    for name, shape in shapes.items():
        digests[name] = checkpoint.digest(name, shape)
        done += checkpoint.info(name, shape).size_bytes
        if on_progress is not None:
            on_progress(done, total)
    if only is None and has_both_layouts(directory):
        _check_other_layout(directory, shapes, digests)
    return Manifest(config_digest(config), tokenizer_digests(directory), digests)


def _check_other_layout(
    directory: Path, shapes: Mapping[str, TensorShape], digests: Mapping[str, str]
) -> None:
    """Raise `BrokenModel` unless the one file beside the index holds the same tensors."""
    single = Checkpoint(directory, single_file=True)
    for name, digest in digests.items():
        if not single.has(name) or single.digest(name, shapes[name]) != digest:
            raise BrokenModel(
                f"{directory} holds two models: the tensor {name} in {SINGLE_FILE} is not the one "
                f"that {INDEX_FILE} names",
                "Remove the one that is not wanted, the index with its files or the single file.",
            )


_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "add_bos_token", "add_eos_token")


def tokenizer_digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the parts of the tokenizer that there are: what turns a chat into token ids."""
    parts: dict[str, object] = {}
    if (directory / "tokenizer.json").exists():
        content = read_fields(directory / "tokenizer.json", MAX_TOKENIZER_BYTES).everything()
        parts["tokenizer.json"] = content
        parts |= named_beside(directory, content)
    else:
        parts |= {
            name: hashlib.sha256(read_bounded(directory / name, MAX_TOKENIZER_BYTES)).hexdigest()
            for name in OLDER_FILES
            if (directory / name).exists()
        }
    if (directory / "tokenizer_config.json").exists():
        fields = read_fields(directory / "tokenizer_config.json")
        parts["chat_template"] = fields.raw("chat_template")
        parts["special_tokens"] = {name: _content(fields.raw(name)) for name in _SPECIAL_TOKENS}
    template = directory / "chat_template.jinja"
    if template.exists():
        parts["chat_template"] = read_text(template)
    return {
        name: hashlib.sha256(json.dumps(part, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        for name, part in parts.items()
        if part is not None
    }


def _content(token: object) -> object:
    """A special token's text, whether written as a string or as an object with its content."""
    return token.get("content") if isinstance(token, dict) else token


def _size_bytes(shapes: Iterable[TensorShape], dtype: torch.dtype) -> int:
    return sum(math.prod(shape) for shape in shapes) * dtype.itemsize


class _Loader:
    """Reads tensors into memory in one dtype, and tells how far it is."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        manifest: Manifest | None,
        total_bytes: int,
        on_progress: Progress | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._manifest = manifest
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress

    def tensor(self, name: str, shape: TensorShape) -> Tensor:
        """One tensor."""
        return self.stack([name], {name: shape})

    def stack(self, names: list[str], shapes: dict[str, TensorShape]) -> Tensor:
        """Several tensors on top of each other in one."""
        rows = [shapes[name][0] for name in names]
        for name in names:  # before there is memory for it
            self._checkpoint.info(name, shapes[name])
        stacked = torch.empty(sum(rows), *shapes[names[0]][1:], dtype=self._dtype)
        for name, part in zip(names, torch.split(stacked, rows), strict=True):
            self._checkpoint.read_into(name, part, self._manifest)
            self._done_bytes += part.nbytes
            if self._on_progress is not None:
                self._on_progress(self._done_bytes, self._total_bytes)
        return stacked

    def norm(self, name: str, shapes: dict[str, TensorShape], config: ModelConfig) -> Norm:
        """A norm of the model's kind."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        return Norm(
            config.design.norm,
            self.tensor(weight, shapes[weight]),
            self.tensor(bias, shapes[bias]) if bias in shapes else None,
            config.rms_norm_eps,
        )

    def linear(
        self, names: list[str], shapes: dict[str, TensorShape], choices: Mapping[Shape, KernelChoice]
    ) -> Linear:
        """Several linear layers with the same input as one."""
        weight = self.stack([f"{name}.weight" for name in names], shapes)
        has_bias = f"{names[0]}.bias" in shapes
        bias = self.stack([f"{name}.bias" for name in names], shapes) if has_bias else None
        return pack_linear(weight, bias, choices[Shape(*weight.shape)])


def _load_block(
    loader: _Loader, config: ModelConfig, block: int, choices: Mapping[Shape, KernelChoice]
) -> BlockWeights:
    shapes = block_tensors(config, block)
    layer = f"model.layers.{block}"

    def norm(name: str) -> Norm | None:
        return loader.norm(f"{layer}.{name}", shapes, config) if name else None

    def linear(*names: str) -> Linear:
        return loader.linear([f"{layer}.{name}" for name in names], shapes, choices)

    def linear_pair(gate_up: tuple[str, ...], down: str, _: int) -> Mlp:
        return Mlp(linear(*gate_up), linear(down), activate)

    def gate(name: str) -> Tensor:
        return loader.tensor(f"{layer}.{name}.weight", shapes[f"{layer}.{name}.weight"])

    activate = activation_of(config.design.activation, config.design.gated_mlp)
    names = config.design.names
    return BlockWeights(
        input_norm=norm(names.input_norm),
        qkv_proj=linear(*names.qkv),
        q_norm=norm(names.q_norm) if config.qk_norm else None,
        k_norm=norm(names.k_norm) if config.qk_norm else None,
        o_proj=linear(names.output),
        attention_out_norm=norm(names.attention_out_norm),
        mlp_norm=norm(names.mlp_norm),
        mlp=_as_mlp(config, [linear_pair(*each) for each in mlp_names(config)], gate),
        mlp_out_norm=norm(names.mlp_out_norm),
    )


def _as_mlp(config: ModelConfig, mlps: list[Mlp], gate: Callable[[str], Tensor]) -> Mlp | Mixture:
    """A block's MLPs as one; `gate` reads a small tensor by name."""
    experts = config.design.experts
    if experts is None:
        return mlps[0]
    shared = bool(experts.shared_width)
    return Mixture(
        router=gate(f"{experts.place}.gate"),
        experts=tuple(mlps[: experts.count]),
        per_row=experts.per_token,
        normalised=experts.normalised,
        shared=mlps[-1] if shared else None,
        shared_gate=gate(f"{experts.place}.shared_expert_gate") if shared else None,
    )
