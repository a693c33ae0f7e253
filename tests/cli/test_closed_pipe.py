"""A reader that closes early, as in `swarm status | head -1`, ends every kind of command without a word."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from swarm.cli import main
from swarm.cli.output import console, print_result
from swarm.cli.runtime import run_command, run_service
from swarm.cli.status import _tell

async def plain():
    print_result("x")

async def status():
    _tell([], 3, as_json=False, redraw=False)

async def table():
    console().print("x")

async def task_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(plain())
        group.create_task(asyncio.sleep(60))

work = globals()[sys.argv[1]]

class Group:
    def main(self, *arguments, **settings):
        return run_service(lambda stop: work()) if sys.argv[2] == "service" else run_command(work())

main.build_group = Group
sys.exit(main.run([]))
"""


@pytest.mark.parametrize("kind", ["command", "service"])
@pytest.mark.parametrize("work", ["plain", "status", "table", "task_in_a_group"])
def test_a_reader_that_is_gone_ends_the_command_quietly(kind, work):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, work, kind],
            stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")
