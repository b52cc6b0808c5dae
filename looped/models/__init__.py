"""Looped models in Flax NNX, one file per family, and the parameter tree they share.

A model is four pieces: `embed`, one `recurrent_pass`, `gate_logits` and `logits`. It knows nothing
of caches, loops or requests: the caller decides how often a row passes, and hands in the
attention, which owns the keys and values.
"""

from .ouro import Attend, OuroModel
from .parameters import ParameterReader, load_model, parameter_shapes, stored_parameters

__all__ = [
    "Attend",
    "OuroModel",
    "ParameterReader",
    "load_model",
    "parameter_shapes",
    "stored_parameters",
]
