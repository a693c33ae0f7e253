"""The limit of open files is raised as far as the system lets it be."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 4096, 4096), (1024, 1024, 1024)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft, hard, then):
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from swarm.http_server import most_connections\n"
        "from swarm.open_files import limit, raise_limit\n"
        "print(raise_limit(), limit(), most_connections())"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(then), str(then), str(min(2048, then // 2))]
