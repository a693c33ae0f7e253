"""The one tree of errors. Every error says what happened and what to do about it.

    SwarmError
    ├── UsageError              the call itself is wrong                        exit 2
    │   └── RequestError        one request cannot be served as asked
    │       ├── EmptyPrompt
    │       ├── ContextOverflow
    │       └── BrokenTranscript
    ├── ConfigurationError      this machine cannot do what was asked           exit 78
    │   ├── PortInUse
    │   ├── DoesNotFit
    │   └── ClockSkew
    ├── ModelError              a model's files
    │   ├── UnknownModel
    │   ├── BrokenModel         missing, truncated, or not what the config says
    │   ├── UnsupportedModel
    │   ├── ManifestMismatch    the same name, other weights
    │   └── DownloadFailed
    ├── NetworkError            retryable
    │   ├── JoinFailed                                                          exit 69
    │   ├── PeerUnreachable
    │   ├── ClockOff            this machine's clock has left those of the others
    │   └── ChannelClosed       the other end is gone
    ├── ProtocolError           the other end broke the protocol
    │   ├── FrameTooLarge
    │   ├── MalformedMessage
    │   └── InvalidRecord
    │       └── StaleRecord     it was valid once, or will be
    ├── SessionRefused          a peer refused or ended a session; carries its code
    ├── HopLost                 retryable; an event of session/chain
    └── NoRoute                 no live peer for some blocks                    exit 69
        └── PeersFull           there are some, and they have no room

`code` is stable and for machines; `str(error)` is for people. A `retryable` error may go away by
itself. Nothing in the project raises a bare `Exception`, and data from outside never meets an
`assert`.
"""

from typing import ClassVar, Literal

LossKind = Literal[
    "broken",  # its stream ended
    "silent",  # nothing was heard for longer than the lease
    "stalled",  # its link takes no bytes
    "late",  # it beats, and does not answer
    "full",  # it has no room for the session
    "refused",  # it ended the session with another Fault
    "unreached",  # it did not even answer a dial
    "nonsense",  # it broke the protocol, or answered what no model computes
    "slow",  # left in time, for another that is much faster
    "leaving",  # left in time, because it said that it goes
]
"""Why a hop was left."""


CLOCK_FIX = "Let the operating system set the time (on Linux: timedatectl set-ntp true) and try again."


class SwarmError(Exception):
    """Base of all errors. `what` happened, and how to `fix` it, each one sentence."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = what.rstrip(".")
        self.fix = fix
        super().__init__(f"{self.what}. {fix}".strip())


class UsageError(SwarmError):
    """An argument or option is wrong; `parameter` is its name, where it is one alone."""

    code = "usage"
    exit_code = 2

    def __init__(self, what: str, fix: str = "", parameter: str | None = None) -> None:
        super().__init__(what, fix)
        self.parameter = parameter


class ConfigurationError(SwarmError):
    """This machine or its configuration cannot do what was asked."""

    code = "configuration"
    exit_code = 78


class PortInUse(ConfigurationError):
    """Another program listens on the address."""

    code = "port_in_use"


class DoesNotFit(ConfigurationError):
    """The span needs more memory than the peer may use."""

    code = "does_not_fit"


class ClockSkew(ConfigurationError):
    """This machine's clock and the swarm's differ by more than the limit."""

    code = "clock_skew"


class ModelError(SwarmError):
    """Something is wrong with a model's files."""

    code = "model"


class UnknownModel(ModelError):
    """No model of that name is cached and no directory of that name exists."""

    code = "unknown_model"


class BrokenModel(ModelError):
    """A file of the model is missing, truncated, or not what its config says."""

    code = "broken_model"


class UnsupportedModel(ModelError):
    """The architecture, or an option of it, is not one this version can run."""

    code = "unsupported_model"


class ManifestMismatch(ModelError):
    """A tensor, or a whole model, is not the one that the manifest names."""

    code = "manifest_mismatch"


class DownloadFailed(ModelError):
    """A download failed or arrived with the wrong checksum; nothing half-written is kept."""

    code = "download_failed"


class NetworkError(SwarmError):
    """The network, or somebody on it, did not answer."""

    code = "network"
    retryable = True


class JoinFailed(NetworkError):
    """No address given with --join answered."""

    code = "join_failed"
    exit_code = 69


class PeerUnreachable(NetworkError):
    """No stream to the peer could be opened."""

    code = "peer_unreachable"


class ClockOff(NetworkError):
    """While this node runs, its clock has come to differ from those of the nodes around it.

    Records are judged by the clock: others take none of ours, and theirs seem old or from the future.
    """

    code = "clock_skew"

    def __init__(self, behind_s: float) -> None:
        """`behind_s`: how far the others are ahead; negative where this machine is."""
        how = f"{abs(behind_s):.0f} s {'behind' if behind_s > 0 else 'ahead of'}"
        super().__init__(f"The clock of this machine is {how} those of the nodes around it", CLOCK_FIX)


class ChannelClosed(NetworkError):
    """The other end closed the stream, or died."""

    code = "channel_closed"


class ProtocolError(SwarmError):
    """The other end sent what the protocol does not allow."""

    code = "protocol"


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than the limit; it was refused before it was read."""

    code = "frame_too_large"


class MalformedMessage(ProtocolError):
    """Bytes that are not a message, or a message whose fields do not fit together."""

    code = "malformed_message"


class InvalidRecord(ProtocolError):
    """A directory record with a wrong signature, owner, key or life."""

    code = "invalid_record"


class StaleRecord(InvalidRecord):
    """A record that was valid once, or will be: it has expired, or is from the future.

    Clocks differ and answers travel, so that is nobody's fault.
    """

    code = "stale_record"


class RequestError(UsageError):
    """The request cannot be served as it is."""

    code = "bad_request"


class EmptyPrompt(RequestError):
    """There is nothing to continue: the prompt has no tokens."""

    code = "empty_prompt"


class ContextOverflow(RequestError):
    """Prompt and reply do not fit in the model's context."""

    code = "context_length_exceeded"


class BrokenTranscript(RequestError):
    """A conversation that was kept on disk cannot be read."""

    code = "broken_transcript"


class SessionRefused(SwarmError):
    """A peer refused or ended a session. `fault_code` is the peer's own code for it.

    `field` names the part of the message at fault, `expected_position` is set when the peer
    stands at another position.
    """

    code = "session_refused"

    def __init__(
        self, fault_code: str, text: str, field: str = "", expected_position: int | None = None
    ) -> None:
        self.fault_code = fault_code
        self.field = field
        self.expected_position = expected_position
        super().__init__(text)


class HopLost(SwarmError):
    """A hop of the chain no longer answers; its span is to be covered by others."""

    code = "hop_lost"
    retryable = True

    def __init__(self, peer: str, kind: LossKind, reason: str, silent_s: float | None = None) -> None:
        """`reason` is for people, `kind` for code; `silent_s`: for how long it was silent, if that is why."""
        self.peer = peer
        self.kind = kind
        self.reason = reason
        self.silent_s = silent_s
        super().__init__(f"Peer {peer} was lost: {reason}")


class NoRoute(SwarmError):
    """Some blocks of the model are on no live peer."""

    code = "no_route"
    exit_code = 69
    retryable = True


class PeersFull(NoRoute):
    """Every peer that hosts some blocks is there and has no room for another session."""

    code = "overloaded"
