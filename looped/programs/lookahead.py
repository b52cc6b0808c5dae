"""Look-ahead heads on the device: what decides an exit one loop before it happens.

Two exit modes share rules and code and differ in the head: `random_lookahead` has one frozen random
vector for every loop, a baseline; `lookahead` has a trained head for each loop.
"""

from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from looped.config import ModelConfig
from looped.convert import LOOKAHEAD_FILE, LookaheadGate
from looped.device.pytree import register_pytree
from looped.errors import UsageError
from looped.sched import ExitMode


@register_pytree
class LookaheadHeads:
    """Both kinds of head, float32. Without a trained gate its place holds zeros."""

    random: Float[Array, " E"]
    """N(0, 1/E), never trained."""
    weight: Float[Array, "heads E"]
    """Row r - 1 serves after loop r; at least one row, so that shapes do not depend on P."""
    bias: Float[Array, " heads"]

    @classmethod
    def create(cls, config: ModelConfig, *, seed: int, gate: LookaheadGate | None = None) -> Self:
        """The heads of a model that runs with `config.num_loops`, drawing the random one."""
        num_heads = max(1, config.num_loops - 2)
        width = config.hidden_size
        weight, bias = jnp.zeros((num_heads, width)), jnp.zeros((num_heads,))
        if gate is not None and serves(gate, config):
            weight, bias = jnp.asarray(gate.weight[:num_heads]), jnp.asarray(gate.bias[:num_heads])
        return cls(random=random_head(width, seed), weight=weight, bias=bias)

    def scores(
        self, rows: Float[Array, "R E"], depths: Int[Array, " R"], is_trained: Bool[Array, " R"]
    ) -> Float[Array, " R"]:
        """sigmoid(w . row + b) of each normed row, in float32.

        Args:
            rows: states after a pass.
            depths: the depth that each has run.
            is_trained: whether the trained head is asked, or the random one.
        """
        depths = depths.clip(0, self.bias.shape[0] - 1)
        heads = jnp.where(is_trained[:, None], self.weight[depths], self.random)
        logits = jnp.sum(rows.astype(jnp.float32) * heads, axis=-1)
        return jax.nn.sigmoid(logits + jnp.where(is_trained, self.bias[depths], 0.0))


def random_head(hidden_size: int, seed: int) -> Float[Array, " E"]:
    """Frozen random head of exit mode `random_lookahead`: N(0, 1/E), float32."""
    # The key of `jax.random.key`, without JAX_RANDOM_SEED_OFFSET.
    key = jax.random.wrap_key_data(jnp.asarray([0, seed], jnp.uint32), impl="threefry2x32")
    return jax.random.normal(key, (hidden_size,), jnp.float32) * hidden_size**-0.5


def serves(gate: LookaheadGate, config: ModelConfig) -> bool:
    """Whether a gate has a head for every deciding loop of a model that runs with this P."""
    return 0 < config.num_loops - 2 <= len(gate.bias)


def check_lookahead(mode: ExitMode | None, gate: LookaheadGate | None, num_loops: int) -> None:
    """UsageError for exit mode `lookahead` of a model whose heads do not serve its P.

    Args:
        mode: that is asked for.
        gate: the folder's trained heads, None without them.
        num_loops: P that the model runs with.
    """
    if mode != ExitMode.LOOKAHEAD:
        return
    if num_loops < 3:
        raise UsageError(
            f"exit mode lookahead decides after loops 1 to P - 2, and the model runs P = "
            f"{num_loops}; run at least 3 loops (--num-loops), or choose another mode"
        )
    if gate is None:
        raise UsageError(
            f"exit mode lookahead needs trained heads, and the model's folder has no "
            f"{LOOKAHEAD_FILE}; train them with `looped train lookahead`, or choose another mode"
        )
    if num_loops - 2 > len(gate.bias):
        raise UsageError(
            f"exit mode lookahead needs a head for each of loops 1 to P - 2, and the model runs "
            f"P = {num_loops} with the {len(gate.bias)} of {LOOKAHEAD_FILE}; run at most "
            f"{len(gate.bias) + 2} loops (--num-loops), or choose another mode"
        )
