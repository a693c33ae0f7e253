"""The second half of a block: one MLP, or a mixture of experts of which each row takes a few.

Knows rows of hidden states, no positions and no caches. A mixture holds all of its experts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from swarm.model.linear.linear import Linear


@dataclass(frozen=True, slots=True)
class Mlp:
    """Two linear layers with an activation between, gated or not."""

    gate_up_proj: Linear  # [2 * width, hidden]; [width, hidden] without a gate
    down_proj: Linear  # [hidden, width]
    activate: Callable[[Tensor], Tensor]

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [rows, hidden] to rows [rows, hidden]."""
        return self.down_proj(self.activate(self.gate_up_proj(rows)))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its linear layers."""
        return (self.gate_up_proj, self.down_proj)

    @property
    def unpacked_bytes(self) -> int:
        """Memory held beside the linear layers."""
        return 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts, the router that gives each row its few, and perhaps one that all rows take."""

    router: Tensor  # [experts, hidden]
    experts: tuple[Mlp, ...]
    per_row: int
    normalised: bool  # the shares of a row's few are made to sum to 1
    shared: Mlp | None
    shared_gate: Tensor | None  # [1, hidden]

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [rows, hidden] to rows [rows, hidden]."""
        shares, chosen = self._route(rows)
        mixed = self._shared(rows)
        for expert in sorted(set(chosen.flatten().tolist())):
            taking, place = torch.where(chosen == expert)
            part = self.experts[expert](rows[taking]) * shares[taking, place].unsqueeze(1)
            mixed.index_add_(0, taking, part)
        return mixed

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The shares and the numbers of each row's experts, both [rows, per_row]."""
        probabilities = F.linear(rows, self.router).softmax(dim=-1, dtype=torch.float32)
        shares, chosen = probabilities.topk(self.per_row, dim=-1)
        if self.normalised:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares.to(rows.dtype), chosen

    def _shared(self, rows: Tensor) -> Tensor:
        if self.shared is None or self.shared_gate is None:
            return torch.zeros_like(rows)
        return self.shared(rows) * F.linear(rows, self.shared_gate).sigmoid()

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its linear layers, expert by expert."""
        mlps = self.experts if self.shared is None else (*self.experts, self.shared)
        return tuple(linear for mlp in mlps for linear in mlp.linears)

    @property
    def unpacked_bytes(self) -> int:
        """Memory held beside the linear layers."""
        return self.router.nbytes + (0 if self.shared_gate is None else self.shared_gate.nbytes)
