"""Hidden states as bytes: a matrix [tokens, hidden] in one of a few element types.

Pure. A codec is the element type on the wire; it may be narrower than the one computed in. Bytes
that do not make a matrix of the announced shape are refused, never reshaped.
"""

import torch

from swarm.errors import MalformedMessage
from swarm.wire.messages import FORMATS

CODECS: dict[str, torch.dtype] = dict(
    zip(FORMATS, (torch.float32, torch.bfloat16, torch.float16), strict=True)
)


def encode_tensor(hidden: torch.Tensor, codec: str) -> bytes:
    """The little-endian bytes of a matrix [tokens, hidden]."""
    narrowed = hidden.to(CODECS[codec]).contiguous()
    return narrowed.view(torch.uint8).numpy().tobytes()


def decode_tensor(body: bytes, tokens: int, hidden_size: int, codec: str) -> torch.Tensor:
    """A matrix [tokens, hidden_size] of the codec's dtype; raises `MalformedMessage`."""
    if codec not in CODECS:
        raise MalformedMessage(f"Unknown codec {codec!r}; known are {', '.join(CODECS)}")
    dtype = CODECS[codec]
    expected = tokens * hidden_size * dtype.itemsize
    if tokens < 0 or len(body) != expected:
        raise MalformedMessage(
            f"{len(body)} bytes are not {tokens} rows of {hidden_size} {codec} values ({expected} bytes)"
        )
    if tokens == 0:
        return torch.empty((0, hidden_size), dtype=dtype)
    # bytearray: torch wants memory it may write to
    return torch.frombuffer(bytearray(body), dtype=dtype).view(tokens, hidden_size)
