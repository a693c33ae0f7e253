"""docker-compose.yml as values, for the tests that check it and the one that runs it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
HOME = "/swarm"  # SWARM_HOME in the image
CONFIG = f"{HOME}/shared/config.toml"


@dataclass(frozen=True)
class Compose:
    """The file, with `$$` written as the container sees it."""

    data: dict[str, Any]

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        return self.data["services"]

    def command(self, service: str) -> list[str]:
        """What a container runs, word by word."""
        return [word.replace("$$", "$") for word in self.services[service]["command"]]

    @property
    def prepare_script(self) -> str:
        return self.command("prepare")[-1]

    @property
    def peers(self) -> list[str]:
        return [name for name, service in self.services.items() if "peer" in service["command"]]


def read_compose() -> Compose:
    return Compose(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def joined_commands(compose: Compose) -> list[str]:
    """The commands that the prepared configuration tells where to join."""
    loop = re.search(r"for command in ([a-z -]+);", compose.prepare_script)
    assert loop is not None
    return loop[1].split()
