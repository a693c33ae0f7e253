"""`swarm model`, run as a person runs it, in this process and once as a program."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from swarm.cli.model import command
from swarm.errors import ManifestMismatch, UnknownModel, UnsupportedModel
from swarm.security.manifest import parse_manifest


@pytest.fixture
def swarm_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(swarm_home):
    """Runs one command; gives its stdout. Errors come out as they are raised."""

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(command, [str(each) for each in arguments])
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


@pytest.fixture
def imported(run, tiny_gguf, tmp_path):
    """The facts printed by the import of a small model named ``tiny``."""
    return json.loads(run("import", tiny_gguf().write(tmp_path / "tiny.gguf"), "--json"))


def test_import_names_the_model_after_the_file(imported, swarm_home):
    assert imported["model"] == "tiny"
    assert imported["directory"] == str(swarm_home / "cache" / "models" / "tiny")
    assert imported["size_bytes"] > 0


def test_import_takes_a_name_and_a_dtype(run, tiny_gguf, tmp_path):
    run("import", tiny_gguf().write(tmp_path / "x.gguf"), "--name", "other", "--dtype", "fp32")
    facts = json.loads(run("show", "other", "--json"))
    assert (facts["model"], facts["dtype"]) == ("other", "float32")


def test_manifest_prints_the_digest_or_the_whole(imported, run):
    assert run("manifest", "tiny") == imported["manifest"] + "\n"
    assert parse_manifest(run("manifest", "tiny", "--json")).digest == imported["manifest"]


def test_show_describes_the_model(imported, run):
    facts = json.loads(run("show", "tiny", "--json"))
    shape = {name: facts[name] for name in ("family", "blocks", "hidden", "heads", "kv_heads", "context")}
    assert shape == {"family": "llama", "blocks": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "context": 128}
    assert facts["manifest"] == imported["manifest"]
    assert facts["block_bytes"]["fp32"] == 2 * facts["block_bytes"]["bf16"] > 0


def test_show_is_readable(imported, run):
    lines = dict(line.split(maxsplit=1) for line in run("show", imported["directory"]).splitlines())
    assert lines["family"] == "llama"
    assert lines["block"].startswith("fp32 36.2 KiB, bf16 18.1 KiB")
    assert lines["manifest"] == imported["manifest"]


def test_check_needs_only_a_configuration(run, tmp_path):
    config = {"model_type": "qwen3_moe", "head_dim": 128, "num_experts": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = json.loads(run("check", tmp_path, "--json"))
    assert (facts["family"], facts["blocks"]) == ("qwen3_moe", 24)
    experts = 16 * 3 * 2048 * 768
    assert facts["block_bytes"]["bf16"] > 2 * experts
    assert facts["head_bytes"]["bf16"] == 2 * (2 * 151_936 * 2048 + 2048)
    assert run("check", tmp_path).startswith(f"{tmp_path} can be hosted")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt_oss"}, "'gpt_oss'.*not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised .awq."),
        ({"mlp_only_layers": [3]}, "only some have experts"),
    ],
)
def test_check_says_why_a_model_cannot_be_hosted(run, tmp_path, changes, reason):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", **changes}))
    with pytest.raises(UnsupportedModel, match=reason):
        run("check", tmp_path)


def test_verify_agrees_with_a_whole_model(imported, run):
    assert json.loads(run("verify", "tiny", "--json"))["whole"] is True
    assert imported["manifest"] in run("verify", "tiny")


def test_verify_refuses_a_changed_model(imported, run, swarm_home):
    path = swarm_home / "cache" / "models" / "tiny" / "tokenizer.json"
    path.write_text(path.read_text().replace("Ġthe", "Ġtha"))
    with pytest.raises(ManifestMismatch, match=r"tokenizer\.json"):
        run("verify", "tiny")


def test_list_shows_what_is_cached(imported, run):
    assert run("list").split()[0] == "tiny"
    assert json.loads(run("list", "--json")) == {"models": [imported]}


def test_list_of_an_empty_store_is_empty(run):
    assert run("list") == ""
    assert json.loads(run("list", "--json")) == {"models": []}


@pytest.mark.parametrize("name", ["show", "verify", "manifest"])
def test_unknown_model_is_refused(name, imported, run):
    with pytest.raises(UnknownModel, match="Did you mean 'tiny'"):
        run(name, "tinny")


def test_import_of_an_unsupported_file_is_refused(run, tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.pre = "mystery"
    with pytest.raises(UnsupportedModel):
        run("import", source.write(tmp_path / "x.gguf"))


def test_as_a_program_results_are_on_stdout_and_progress_and_errors_on_stderr(tiny_gguf, tmp_path):
    path = tiny_gguf().write(tmp_path / "tiny.gguf")
    environment = os.environ | {"SWARM_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "swarm", "model"]
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 100, "check": False}
    imported = subprocess.run([*program, "import", str(path)], **options)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout == f"{tmp_path / 'home' / 'cache' / 'models' / 'tiny'}\n"
    assert "converting" in imported.stderr
    refused = subprocess.run([*program, "show", "tinny"], **options)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("swarm: No model 'tinny' is cached")


@pytest.mark.model
def test_pull_of_a_cached_model_prints_its_directory(smollm2):
    result = CliRunner().invoke(command, ["pull", "smollm2-135m"])
    assert (result.exit_code, result.stdout) == (0, f"{smollm2}\n")
