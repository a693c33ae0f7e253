"""tokenizer.json, read and made into the library's tokenizer.

What the library gets is what was looked at, written anew: two parsers may read one file in two ways.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from swarm.errors import BrokenModel
from swarm.model.fields import MAX_TOKENIZER_BYTES
from swarm.security.foreign import read_json

PULL_AGAIN = "Pull the model again, or point to a complete directory."


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """The object in it. Raises `BrokenModel` when it is missing, too large, too deep, or not an object."""
    try:
        content = read_json(path, MAX_TOKENIZER_BYTES)
    except FileNotFoundError as error:
        raise BrokenModel(f"{path} is missing", PULL_AGAIN) from error
    except (OSError, ValueError) as error:
        raise _broken(path, error) from error
    if not isinstance(content, dict):
        raise _broken(path, "it does not hold an object")
    return content


def load_backend(content: Mapping[str, Any], path: Path | str) -> tokenizers.Tokenizer:
    """The library's tokenizer, which neither cuts nor pads. Raises `BrokenModel` naming `path`."""
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    except BaseException as error:
        if not is_the_librarys(error):
            raise
        raise _broken(path, error) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def is_the_librarys(error: BaseException) -> bool:
    """Whether the library raised it: nothing narrower than Exception, or a panic, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _broken(path: Path | str, problem: object) -> BrokenModel:
    return BrokenModel(f"{path} is not a tokenizer: {problem}", PULL_AGAIN)
