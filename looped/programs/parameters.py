"""What compiled steps read and never write: the model, and the look-ahead heads beside it."""

from looped.device.pytree import register_pytree
from looped.models.looped_model import LoopedModel

from .lookahead import LookaheadHeads


@register_pytree
class Parameters:
    """Arguments of every step, beside the state."""

    model: LoopedModel
    lookahead: LookaheadHeads
