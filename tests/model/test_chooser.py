"""Kernels are measured once for a machine, and from then on its file decides."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from swarm.model.config import read_config
from swarm.model.linear import machine
from swarm.model.linear.choice import LAYOUTS, Form, KernelChoice, Shape, form_of, plain_choice
from swarm.model.linear.chooser import MeasuringChooser, PlainChooser, known_choices
from swarm.model.weights import load_head, load_span
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

LARGE, SMALL = Shape(1024, 512), Shape(48, 64)
FORM = Form(torch.float32)
MEASURED = KernelChoice("transposed", ("matmul",) * 4, (1.0, 2.0, 3.0, 4.0))


class Measuring:
    """Says that transposed weights are the fastest, and counts how often it is asked."""

    def __init__(self, choice=MEASURED):
        self.choice = choice
        self.asked = []

    def __call__(self, shape, form):
        self.asked.append((shape, form))
        return self.choice


def test_what_was_measured_here_can_be_told(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    MeasuringChooser(tmp_path, Measuring()).choose([LARGE], Form(torch.bfloat16, "int8"))
    assert known_choices(tmp_path) == {"threads 1 | bf16+int8 1024x512": MEASURED}
    monkeypatch.setattr("swarm.model.linear.chooser.build", lambda: "1.0")
    assert known_choices(tmp_path) == {}


def test_a_shape_is_measured_once_for_all_processes(tmp_path):
    first, second = Measuring(), Measuring(KernelChoice("plain", ("linear",) * 4))
    assert MeasuringChooser(tmp_path, first).choose([LARGE, LARGE], FORM) == {LARGE: MEASURED}
    assert MeasuringChooser(tmp_path, second).choose([LARGE], FORM) == {LARGE: MEASURED}
    assert (len(first.asked), second.asked) == (1, [])


def test_small_weights_are_not_measured(tmp_path):
    measuring = Measuring()
    chosen = MeasuringChooser(tmp_path, measuring).choose([SMALL], FORM)
    assert chosen == {SMALL: plain_choice(FORM)}
    assert measuring.asked == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr("swarm.model.linear.chooser.processor", lambda: "another"),
        lambda patch: patch.setattr("swarm.model.linear.chooser.build", lambda: "1.0"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
        lambda patch: patch.delitem(LAYOUTS, "transposed"),
    ],
    ids=["processor", "torch", "threads", "kernels"],
)
def test_another_machine_or_build_is_measured_anew(tmp_path, monkeypatch, change):
    MeasuringChooser(tmp_path, Measuring()).choose([LARGE], FORM)
    change(monkeypatch)
    measuring = Measuring(KernelChoice("plain", ("linear",) * 4))
    MeasuringChooser(tmp_path, measuring).choose([LARGE], FORM)
    assert measuring.asked == [(LARGE, FORM)]


def test_forms_are_kept_apart(tmp_path):
    measuring = Measuring()
    forms = [FORM, Form(torch.bfloat16), Form(torch.float32, legible=True), Form(torch.float32, "int8")]
    for form in forms:
        MeasuringChooser(tmp_path, measuring).choose([LARGE], form)
    assert measuring.asked == [(LARGE, form) for form in forms]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\x00",
        b"[1, 2]",
        b'{"x": 3}',
        b"[" * 100_000,
        b"x" * (2**22 + 1),
    ],
    ids=["empty", "bytes", "list", "number", "deep", "large"],
)
def test_a_damaged_file_is_measured_anew(tmp_path, damage):
    (tmp_path / "kernels.json").write_bytes(damage)
    measuring = Measuring()
    assert MeasuringChooser(tmp_path, measuring).choose([LARGE], FORM) == {LARGE: MEASURED}
    assert len(measuring.asked) == 1
    assert MeasuringChooser(tmp_path, measuring).choose([LARGE], FORM) == {LARGE: MEASURED}
    assert len(measuring.asked) == 1


@pytest.mark.parametrize(
    "strange",
    [
        {"layout": "of-tomorrow", "kernels": ["x"] * 4},
        {"layout": "plain", "kernels": ["linear", "of-tomorrow", "linear", "linear"]},
        {"layout": "plain", "kernels": ["linear"]},
        {"layout": "int8", "kernels": ["int-mm"] * 4},
    ],
)
def test_a_choice_that_cannot_be_used_here_is_measured_anew(tmp_path, strange):
    MeasuringChooser(tmp_path, Measuring()).choose([LARGE], FORM)
    file = tmp_path / "kernels.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), strange)))
    assert MeasuringChooser(tmp_path, Measuring()).choose([LARGE], FORM) == {LARGE: MEASURED}


def test_where_nothing_can_be_kept_the_kernels_are_plain(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    chosen = MeasuringChooser(blocked, Measuring()).choose([LARGE], FORM)
    assert chosen == PlainChooser().choose([LARGE], FORM)
    assert "cannot be kept" in caplog.text


def choose_in_a_process(folder, results):
    torch.set_num_threads(1)
    results.put(MeasuringChooser(folder).choose([LARGE], FORM)[LARGE])


def test_processes_that_start_together_agree(tmp_path):
    spawning = multiprocessing.get_context("spawn")
    results = spawning.Queue()
    processes = [
        spawning.Process(target=choose_in_a_process, args=(tmp_path, results), daemon=True) for _ in range(3)
    ]
    for process in processes:
        process.start()
    chosen = [results.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    assert chosen[0].microseconds
    assert chosen.count(chosen[0]) == 3


def test_a_weight_that_does_not_suit_4_bits_is_kept_in_8():
    int4 = Form(torch.bfloat16, "int4")
    assert form_of(Shape(64, 64), int4).quantization == "int4"
    assert form_of(Shape(64, 40), int4).quantization == "int8"
    assert form_of(Shape(60, 64), int4).quantization == "int8"
    assert form_of(Shape(60, 40), FORM) == FORM


class Forced:
    """Gives every weight one layout."""

    def __init__(self, name):
        layout = LAYOUTS[name]
        many = next(kernel.name for kernel in layout.kernels if kernel.most_rows is None)
        self.choice = KernelChoice(name, (layout.kernels[-1].name if name == "int4" else many,) * 4)

    def choose(self, shapes, form):
        return dict.fromkeys(shapes, self.choice)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory, TinyModel(overrides={"tie_word_embeddings": True}))
    return directory


def kernels(directory, chooser=None, dtype=torch.float32, span=Span(0, 2)):  # noqa: B008
    return load_span(directory, read_config(directory), span, dtype=dtype, chooser=chooser).kernels


def test_the_fingerprint_tells_kernels_formats_and_machines_apart(directory, monkeypatch):
    plain = kernels(directory)
    assert kernels(directory, span=Span(1, 3)) == plain
    others = [kernels(directory, Forced("transposed")), kernels(directory, dtype=torch.bfloat16)]
    monkeypatch.setattr(machine, "_name", lambda: "another processor")
    others.append(kernels(directory))
    assert len({plain, *others}) == 4
    assert len(plain) == 12


def test_a_tied_head_has_one_copy_in_every_legible_layout(directory):
    config = read_config(directory)
    plain = load_head(directory, config, dtype=torch.float32)
    other = load_head(directory, config, dtype=torch.float32, chooser=Forced("transposed"))
    assert other.weights_bytes == plain.weights_bytes
    assert torch.equal(other.embed([5, 0, 7]), plain.embed([5, 0, 7]))
    hidden = plain.embed([1, 2])
    torch.testing.assert_close(other.logits(hidden), plain.logits(hidden))
