"""Option types for what people write: spans `3:9`, sizes `20GiB`, durations `30s`, `HOST:PORT`.

The parsing itself is in `swarm.values`; here its refusal becomes click's, with the option's name.
"""

from collections.abc import Callable

import click

from swarm.errors import UsageError
from swarm.values import parse_duration, parse_host_port, parse_size, parse_span


class Parsed(click.ParamType[object]):
    """Text read by a function of `swarm.values`; a value that is no text is taken as it is."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


SPAN = Parsed("start:end", parse_span)
SIZE = Parsed("size", parse_size)  # bytes
DURATION = Parsed("duration", parse_duration)  # seconds
HOST_PORT = Parsed("host:port", parse_host_port)
