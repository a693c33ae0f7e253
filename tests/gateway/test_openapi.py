"""The published document is true: whatever fits it is answered as it says, and nothing is a 500."""

import asyncio
import subprocess
import sys

import pytest

from swarm.testing.tiny_models import TinyModel, write_tiny_model
from tests.gateway.conftest import MODEL


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny model whose longest reply is soon done, since generated requests name no length."""
    directory = tmp_path_factory.mktemp("short") / MODEL
    write_tiny_model(directory, TinyModel(overrides={"max_position_embeddings": 128}))
    return directory


@pytest.mark.timeout(300)
async def test_generated_requests_meet_no_error_of_ours_and_no_undocumented_answer(serve, tmp_path):
    async with serve(deadline_s=15.0) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
            "run", f"{served.url}/openapi.json", "--url", served.url,
            "--max-examples", "25", "--seed", "1", "--phases", "examples,coverage,fuzzing",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_headers_conformance,response_schema_conformance,unsupported_method",
            "--request-timeout", "20", "--no-color",
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[-6000:]
