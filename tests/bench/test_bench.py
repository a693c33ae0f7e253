"""`swarm bench`: what it prints, and what it takes from llama.cpp."""

import json

import pytest

from swarm.bench.llama_bench import LlamaLine, read_llama_bench
from swarm.bench.numbers import Numbers, parse_numbers
from swarm.cli.main import run
from swarm.errors import UsageError
from swarm.testing.tiny_models import TinyModel, write_tiny_model

PRINTED = b"""[
  {"model_filename": "F16.gguf", "n_threads": 1, "n_prompt": 512, "n_gen": 0, "avg_ts": 186.314},
  {"model_filename": "F16.gguf", "n_threads": 1, "n_prompt": 0, "n_gen": 64, "avg_ts": 21.257}
]"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=4))
    return tmp_path / "tiny"


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("fp32", Numbers("fp32", "none")),
        ("int8", Numbers("bf16", "int8")),
        ("fp16+int4", Numbers("fp16", "int4")),
        ("bf16+none", Numbers("bf16", "none")),
    ],
)
def test_a_format_is_read(text, numbers):
    assert parse_numbers(text) == numbers
    assert parse_numbers(str(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "fp8", "bf16+int3", "int8+int8", "+int8"])
def test_an_unknown_format_is_refused(text):
    with pytest.raises(UsageError):
        parse_numbers(text)


def test_the_engine_tells_each_format_at_each_number_of_rows(tiny, capsys):
    assert run(["bench", "engine", str(tiny), "--format", "fp32", "--format", "int8", "--json"]) == 0
    found = lines(capsys)
    assert [(line["dtype"], line["quantization"], line["kind"], line["rows"]) for line in found] == [
        (dtype, quantization, kind, rows)
        for dtype, quantization in (("fp32", "none"), ("bf16", "int8"))
        for kind, rows in [*(("decode", rows) for rows in (1, 2, 4, 8, 16)), ("prefill", 256)]
    ]
    assert all(line["tokens_per_s"] > 0 and line["head_ms"] > 0 for line in found)
    assert found[0]["kernels"]["48x48"] == "plain mv"
    assert found[1]["kernels"]["48x48"] == "plain linear"


@pytest.mark.live
def test_a_chain_is_compared_with_one_process(tiny, capsys):
    options = ["--format", "fp32", "--format", "int8", "--pairs", "1", "--tokens", "4", "--prompt", "16"]
    assert run(["bench", "chain", str(tiny), *options, "--json"]) == 0
    plain, quantized = lines(capsys)
    assert list(plain) == [
        "dtype", "quantization", "peers", "decode_tokens_per_s", "prefill_tokens_per_s",
        "floor_decode_tokens_per_s", "floor_prefill_tokens_per_s", "ratio_decode", "ratio_prefill", "parity",
    ]  # fmt: skip
    assert (plain["dtype"], plain["peers"], plain["parity"]) == ("fp32", 2, True)
    assert (quantized["quantization"], quantized["parity"]) == ("int8", True)


def test_what_llama_bench_prints_is_read():
    assert read_llama_bench(PRINTED, "F16.gguf", 1) == LlamaLine("llama-bench", "F16.gguf", 1, 21.26, 186.3)


@pytest.mark.parametrize("printed", [b"", b"[]", b"{}", b"[3]", b'[{"n_gen": 1}]', PRINTED[:-200]])
def test_what_is_not_llama_bench_is_refused(printed):
    with pytest.raises(UsageError, match="not what llama-bench prints"):
        read_llama_bench(printed, "F16.gguf", 1)


def test_llama_bench_runs_beside_the_engine(tiny, tmp_path, capsys):
    program, gguf = tmp_path / "llama-bench", tmp_path / "F16.gguf"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{PRINTED.decode()}\nEND\n")
    program.chmod(0o755)
    gguf.write_bytes(b"GGUF")
    options = ["--format", "fp32", "--against", "llama-bench", str(program), "--gguf", str(gguf)]
    assert run(["bench", "engine", str(tiny), *options, "--json"]) == 0
    assert lines(capsys)[-1] == {
        "against": "llama-bench", "model": "F16.gguf", "threads": 1,
        "decode_tokens_per_s": 21.26, "prefill_tokens_per_s": 186.3,
    }  # fmt: skip
    program.write_text("#!/bin/sh\nexit 3\n")
    assert run(["bench", "engine", str(tiny), *options]) == 2
    program.unlink()
    assert run(["bench", "engine", str(tiny), *options]) == 2


def test_a_program_without_a_file_for_it_is_refused(tiny):
    assert run(["bench", "engine", str(tiny), "--against", "llama-bench", "x"]) == 2
