"""How much faster early exit could make decoding, if time were matrix products and nothing else.

A token costs the parameters that it is multiplied with, each two floating-point operations: those
of the LM head once, those of a recurrent pass once a loop.
"""

from dataclasses import dataclass
from math import prod

from looped.config import ModelConfig
from looped.models import EMBEDDING, LM_HEAD, parameter_shapes


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters that rows are multiplied with."""

    head: int
    """F0: the LM head."""
    recurrent: int
    """Fr: one recurrent pass, i.e. all layers, the final norm and the exit gate."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ParameterCounts":
        """Counts a model's tensors. Embedding rows are only looked up, unless they are the head."""
        sizes = {name: prod(shape) for name, shape in parameter_shapes(config).items()}
        recurrent = sum(size for name, size in sizes.items() if name not in (EMBEDDING, LM_HEAD))
        return cls(head=config.vocab_size * config.hidden_size, recurrent=recurrent)

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
