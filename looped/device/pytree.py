"""Dataclasses that JAX sees as pytrees."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register_pytree(cls: type[T]) -> type[T]:
    """Makes a class of annotated fields a frozen dataclass that JAX sees as a pytree."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, kw_only=True)(cls))
