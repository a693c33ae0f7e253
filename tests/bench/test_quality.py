"""What quantising costs, as `swarm model quality` measures it."""

import json
import math

import pytest
import torch

from swarm.bench.quality import measure_quality, own_text
from swarm.cli.main import run
from swarm.errors import UsageError
from swarm.testing.tiny_models import TinyModel, write_tiny_model


@pytest.fixture
def directory(tmp_path):
    overrides = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
    write_tiny_model(tmp_path / "tiny", TinyModel(overrides=overrides))
    return tmp_path / "tiny"


def measure(directory, text, quantization):
    return measure_quality(
        directory, directory.parent, text, quantization, torch.bfloat16, lambda *progress: None
    )


def test_fewer_bits_disagree_more(directory):
    int8, int4 = (measure(directory, own_text()[:600], each) for each in ("int8", "int4"))
    assert int8.perplexity_16_bit == int4.perplexity_16_bit
    assert 1 < int8.perplexity_16_bit < 2000
    assert 0 < int8.divergence_nats < int4.divergence_nats
    assert 0.9 < int8.ratio < 1.1
    assert int4.weights_bytes < int8.weights_bytes < int8.weights_bytes_16_bit
    assert 0 < int4.same_first_choice <= 1


def test_nothing_changed_costs_nothing(directory):
    found = measure(directory, "A river does not decide where to go.", "none")
    assert (found.ratio, found.divergence_nats, found.same_first_choice) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_a_second_token_is_refused(directory, text):
    with pytest.raises(UsageError, match="too short"):
        measure(directory, text, "int8")


def test_the_command_takes_a_text_and_tells_the_ratio(directory, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    text = tmp_path / "text.txt"
    text.write_text(own_text()[:300], encoding="utf-8")
    options = ["model", "quality", str(directory), "--quantization", "int4", "--text", str(text)]
    assert run([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert math.isclose(found["ratio"], found["perplexity"] / found["perplexity_16_bit"])
    assert run(options) == 0
    assert "nats a token" in capsys.readouterr().out
    text.write_bytes(b"\xff\xfe\x00")
    assert run(options) == 2
