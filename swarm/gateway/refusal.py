"""Every way a request can fail, as OpenAI's error shape and HTTP status.

Pure. A `Refusal` is raised by the gateway itself; `refusal_of` gives the one for any other error of
the tree, so that no error of ours ends in a 500 without a name.
"""

import math
import re
from typing import Any, ClassVar

import msgspec

from swarm.errors import (
    ConfigurationError,
    ContextOverflow,
    EmptyPrompt,
    ModelError,
    NetworkError,
    NoRoute,
    SessionRefused,
    SwarmError,
    UsageError,
)
from swarm.gateway.schema import ErrorBody, ErrorDetail

RETRY_LATER_S = 5.0
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "timeout_error",
}


class Refusal(SwarmError):
    """A request is refused. `status` is HTTP's, `param` names the field at fault."""

    code: ClassVar[str] = "refused"

    def __init__(
        self,
        status: int,
        what: str,
        fix: str = "",
        *,
        reason: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what, fix)
        self.status = status
        self.reason = reason
        self.param = param
        self.retry_after_s = retry_after_s
        self.detail = detail

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers must say."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}

    def body(self) -> bytes:
        """The JSON of the answer."""
        detail = ErrorDetail(
            message=str(self),
            type=_TYPES.get(self.status, "server_error"),
            param=self.param,
            code=self.reason,
        )
        if self.detail is not None:
            detail.detail = self.detail
        return msgspec.json.encode(ErrorBody(error=detail))


def bad(param: str, what: str, fix: str = "", reason: str | None = None) -> Refusal:
    """A 400 for one field."""
    return Refusal(400, what, fix, param=param, reason=reason or "invalid_value")


def only_text(param: str, kind: str) -> Refusal:
    """The 400 for an image, a sound or a file."""
    return bad(param, f"The model reads text only, not {kind[:80]!r}", "Send text parts.", "unsupported")


def refusal_of(error: SwarmError) -> Refusal:
    """The answer to a request that ended in this error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextOverflow | EmptyPrompt):
        return Refusal(400, error.what, error.fix, reason=error.code, param="messages")
    if isinstance(error, UsageError):
        return Refusal(400, error.what, error.fix, reason="invalid_value", param=error.parameter)
    if isinstance(error, NoRoute | NetworkError | SessionRefused) or error.retryable:
        return Refusal(503, error.what, error.fix, reason=error.code, retry_after_s=RETRY_LATER_S)
    if isinstance(error, ModelError | ConfigurationError):
        return Refusal(503, error.what, error.fix, reason=error.code)
    return Refusal(500, error.what, error.fix, reason=error.code)


def refusal_of_body(error: msgspec.ValidationError) -> Refusal:
    """The answer to a body that is JSON and not what it should be; names the field."""
    text = str(error)
    place = re.search(r" - at `\$\.?(.*)`$", text)
    missing = re.search(r"missing required field `([^`]*)`", text)
    path = place[1] if place else ""
    param = ".".join(part for part in (path, missing[1] if missing else "") if part) or None
    what = text[: place.start()] if place else text
    where = f"{param}: " if param else ""
    return Refusal(400, f"{where}{what}", reason="missing_field" if missing else "invalid_value", param=param)
