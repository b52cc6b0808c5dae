"""What everything else asks of a family of models; a family is one object of such a class.

A family reads and writes configurations, says which tensors a model has and what Hugging Face
calls them, and names the model's class. Only the class itself needs JAX, so it is imported when
it is asked for.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from looped.config import ModelConfig

from .config_keys import ConfigKeys
from .tensor_names import TensorNames

if TYPE_CHECKING:
    from .looped_model import LoopedModel


class Family(ABC):
    """One family. What differs between its checkpoints is in a `ModelConfig`, not here."""

    model_type: str
    """What config.json calls it; the key of the registry."""
    architecture: str
    """What transformers calls its class; says the family where `model_type` is missing."""
    name: str
    """What people call it."""
    description: str
    """What belongs to it, for the refusal of all that does not."""
    tensor_names: TensorNames
    """From our names of its tensors to Hugging Face's."""
    tensor_mark: str | None = None
    """Part of a Hugging Face name that no other family's tensors have: tells whose tensors lie
    beside a config.json that says otherwise. None: there is no such part."""

    @abstractmethod
    def read_config(self, keys: ConfigKeys) -> ModelConfig:
        """The configuration that a config.json of this family says.

        Raises:
            LoopedError: naming every key that is missing, unknown or unsupported, at once.
        """

    @abstractmethod
    def write_config(self, config: ModelConfig) -> dict[str, Any]:
        """The keys of a config.json that says this; `read_config` reads it back."""

    @abstractmethod
    def parameter_shapes(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the tree on disk, in the order it is written in."""

    @abstractmethod
    def model_class(self) -> "type[LoopedModel]":
        """The model in Flax NNX. Imports JAX."""
