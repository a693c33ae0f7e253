"""Advice before anything is loaded: does it fit, how is it split, and is splitting worth it?"""

import json
from dataclasses import replace

import pytest

from swarm.bench.plan.advice import Question, answer
from swarm.bench.plan.estimate import best_split, blocks_on, needs
from swarm.bench.plan.live import what_it_adds
from swarm.bench.plan.machines import Machine, read_machines
from swarm.bench.plan.picture import picture
from swarm.errors import UsageError
from swarm.model.config import read_config
from swarm.values import ModelDigest
from swarm.wire.records import Snapshot

GB = 10**9
LARGE = {  # 70B-class: 80 blocks of about 0.86 G weights
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The config of a large model, in a directory without any weights."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "config.json").write_text(json.dumps(LARGE))
    return read_config(directory)


@pytest.fixture(scope="module")
def small(config):
    """A model of a tenth of that."""
    return replace(
        config, num_blocks=28, hidden_size=3072, intermediate_size=8192, num_heads=24, vocab_size=32000
    )


def machine(
    name: str, memory_gb: float, reads: float, *, wifi: bool = False, client: bool = False
) -> Machine:
    made = Machine(name, int(memory_gb * GB), reads, 8 * reads, wifi, is_client=client)
    return replace(made, rtt_ms=5.0, mbit_per_s=150.0) if wifi else made


def ask(config, *machines: Machine, dtype: str = "bf16", context: int = 2048):
    return answer(Question(config, machines, dtype, context, 512))


def test_forty_gigabytes_on_two_machines_of_twenty_four_are_split_and_said_to_need_both(config):
    two = [machine("left", 24, 400, client=True), machine("right", 24, 400)]
    told = ask(config, *two, dtype="int4")
    assert told.to_json()["fits"]
    assert {part["machine"] for part in told.to_json()["split"]} == {"left", "right"}
    assert any("No machine holds it alone; 2 together give" in line for line in told.advice)


def test_the_same_in_sixteen_bits_does_not_fit_and_the_format_that_does_is_named(config):
    told = ask(config, machine("left", 24, 400, client=True), machine("right", 24, 400))
    assert told.to_json()["fits"] is False
    assert told.bottleneck == "memory"
    assert any("a model quantised to int4: then it fits" in line for line in told.advice)
    assert any("Or add a machine with" in line for line in told.advice)


def test_one_strong_machine_that_holds_it_is_not_helped_by_two_weak_ones(small):
    weak = [machine(name, 8, 20) for name in ("old", "older")]
    told = ask(small, machine("strong", 24, 300, client=True), *weak)
    assert [part["machine"] for part in told.to_json()["split"]] == ["strong"]
    assert told.advice[0].startswith("Do not split: strong alone gives")


def test_three_laptops_on_wifi_are_told_to_use_cables_and_by_how_much(small):
    laptops = [machine(f"laptop{n}", 3.0, 100, wifi=True, client=n == 0) for n in range(3)]
    told = ask(small, *laptops, dtype="bf16", context=512)
    assert len(told.to_json()["split"]) == 3
    assert any("Use cables instead of Wi-Fi" in line for line in told.advice)


def test_a_split_holds_all_blocks_in_order_and_no_more_than_fit(small):
    machines = [machine("a", 4, 100, client=True), machine("b", 3, 50), machine("c", 9, 20)]
    need = needs(small, "bf16", 1024)
    best = best_split(machines, need, 512)
    ends = [0] + [part.span.end for part in best.parts]
    assert [part.span.start for part in best.parts] == ends[:-1]
    assert ends[-1] == small.num_blocks
    assert all(len(part.span) <= blocks_on(part.machine, need) for part in best.parts)


def test_the_parts_of_a_token_add_up_and_guessing_ahead_only_divides_the_way(small):
    machines = [machine("a", 4, 100, client=True), machine("b", 9, 50, wifi=True)]
    best = best_split(machines, needs(small, "bf16", 1024), 512)
    modes = best.modes()
    assert modes["star"] == pytest.approx(1e3 / (best.compute_ms + best.network_ms + best.protocol_ms))
    assert modes["star"] < modes["push"] < modes["push_speculating"] < 1e3 / best.compute_ms


def test_a_machine_file_is_read_and_the_client_runs_on_the_first(tmp_path):
    path = tmp_path / "home.toml"
    path.write_text('[[machine]]\nname="a"\nmemory="24GB"\nreads_gb_per_s=50\n[[machine]]\nname="b"\n'
                    'memory="8GB"\nreads_gb_per_s=20\nwifi=true\n')  # fmt: skip
    first, second = read_machines(path)
    assert (first.is_client, second.is_client) == (True, False)
    assert (first.memory_bytes, second.rtt_ms) == (24 * GB, 5.0)


NO_SPEED = "[[machine]]\nname='a'\nmemory='8GB'\nreads_gb_per_s=0"


@pytest.mark.parametrize("text", ["", "[[machine]]\nname='a'", "machine=3", "no toml", NO_SPEED])
def test_a_file_that_describes_no_machines_is_refused_with_what_would(tmp_path, text):
    path = tmp_path / "home.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"home\.toml .*\[\[machine\]\]"):
        read_machines(path)


def test_a_machine_is_told_what_it_would_add_to_a_swarm_without_a_peer(small):
    empty = Snapshot(ModelDigest("0" * 64), small.num_blocks, (), 0.0)
    added = what_it_adds(empty, needs(small, "bf16", 512), 10, 50.0)
    assert (added.fits, added.role) == (True, "serve")
    assert any("Nobody hosts blocks" in line for line in added.advice)


def test_a_picture_escapes_the_names_of_a_file(small):
    told = ask(small, machine("<b>", 24, 300, client=True))
    assert "&lt;b&gt;" in picture(told)
    assert "<b>" not in picture(told)
