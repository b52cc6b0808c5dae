"""Launches Triton kernels in Triton's interpreter, on NumPy arrays, in this process.

TRITON_INTERPRET=1 must be in the environment before the kernels are imported. The interpreter
takes torch tensors; what it asks of them fits in a small class over an array.
"""

import warnings
from dataclasses import dataclass

import numpy as np

PADDING = 64  # elements behind every output, to catch stray writes
CANARY = -7.0


@dataclass
class NumpyTensor:
    """The part of a torch tensor that the interpreter uses. Host memory, so nothing is copied."""

    array: np.ndarray

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> "NumpyTensor":
        return self

    def cpu(self) -> "NumpyTensor":
        return self

    def new_empty(self, size: int, device: str) -> "NumpyTensor":
        return NumpyTensor(np.empty(size, self.array.dtype))

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides

    def set_(self, storage: "NumpyTensor", offset: int, size: object, stride: object) -> None:
        self.array = storage.array

    def copy_(self, source: "NumpyTensor") -> None:
        assert source.array is self.array


def interpret(
    kernel,
    *,
    inputs,
    in_place=(),
    outputs=(),
    grid,
    constants,
    num_warps,
    num_stages,
    architecture,
) -> tuple[np.ndarray, ...]:
    """`triton.launch.launch` without a compiler: NaN where a kernel leaves an output out."""
    read = [np.array(array) for array in inputs]
    before = [array.copy() for array in read]
    written = [np.array(array) for array in in_place]
    made, guards = [], []
    for struct in outputs:
        size = int(np.prod(struct.shape))
        memory = np.full(size + PADDING, np.nan, struct.dtype)
        memory[size:] = CANARY
        made.append(memory[:size].reshape(struct.shape))
        guards.append(memory[size:])
    tensors = [NumpyTensor(array) for array in (*read, *written, *made)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        # A test may ask what NaN queries do to their neighbours.
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        kernel[grid](*tensors, *[1] * len(written), **constants)
    for array, old in zip(read, before, strict=True):
        np.testing.assert_array_equal(array, old, err_msg="a kernel wrote to an input")
    for guard in guards:
        assert (guard == CANARY).all(), "a kernel wrote past the end of an output"
    return (*made, *written)
