"""How much faster early exit could make decoding, if time were matrix products and nothing else.

A token costs the parameters that it is multiplied with, each two floating-point operations: those
of the LM head once, those of a recurrent pass once a loop.
"""

from dataclasses import dataclass

import jax
from flax import nnx

from looped.models import OuroModel


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters that rows are multiplied with."""

    head: int
    """F0: the LM head."""
    recurrent: int
    """Fr: one recurrent pass, i.e. all layers, the final norm and the exit gate."""

    @classmethod
    def of(cls, model: OuroModel) -> "ParameterCounts":
        """Counts the modules of a model, loaded or abstract. Embedding rows are only looked up."""
        passes = (model.layers, model.final_norm, model.exit_gate)
        return cls(head=_count(model.lm_head), recurrent=sum(map(_count, passes)))

    def speed_up_bound(
        self, num_tokens: float, all_token_loops: float, token_loops: float
    ) -> float:
        """Work with every loop / work with fewer: (n F0 + a Fr) / (n F0 + b Fr).

        With one token, a = P and b = d that is (F0 + P * Fr) / (F0 + d * Fr).

        Args:
            num_tokens: n, rows of the LM head.
            all_token_loops: a, rows times passes if nothing leaves early.
            token_loops: b, rows times passes as they are.
        """
        head = num_tokens * self.head
        return (head + all_token_loops * self.recurrent) / (head + token_loops * self.recurrent)


def _count(module: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module)))
