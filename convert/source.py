"""A Hugging Face checkpoint folder: what it holds, and every reason not to trust it.

Headers are read first and compared with the configuration, so that a wrong checkpoint is refused
in one message that names all of its faults, before a byte is written anywhere.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from looped.config import ModelConfig, read_json
from looped.errors import LoopedError
from looped.models.parameters import parameter_shapes
from looped.progress import track

from .folder import LOOKAHEAD_FILE
from .names import hugging_face_name, layer_index

INDEX_FILE = "model.safetensors.index.json"

# safetensors' names of the types that are accepted, and ours.
FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
ADAPTER_MARKS = ("base_model.model.", ".lora_", "lora_A", "lora_B")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what its header says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class HuggingFaceFolder:
    """An Ouro checkpoint in Hugging Face form, checked against its own config.json.

    Args:
        path: a folder with config.json and one or many safetensors files.

    Raises:
        LoopedError: when the folder is missing, its configuration is unsupported or its tensors
            do not fit; the message lists all reasons.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise LoopedError(f"{path} is not a folder; expected one with config.json in it")
        self.tensors: dict[str, StoredTensor] = {}
        problems = list(self._collect_tensors())
        try:
            self.config = ModelConfig.from_file(path / "config.json")
        except LoopedError as error:
            problems = [*self._explain_config(), str(error), *problems]
        else:
            problems += find_mismatches(self.config, self.tensors)
        if problems:
            raise LoopedError(_all_reasons(path, [*problems, *self._find_non_finite()]))
        self.shapes = parameter_shapes(self.config)

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every tensor exactly, of the three that are stored."""
        dtypes = {tensor.dtype for tensor in self.tensors.values()}
        return dtypes.pop() if len(dtypes) == 1 else "float32"

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The stored tensor under our name for it, copied into memory."""
        return self._read_stored(hugging_face_name(name))

    def check_values(self) -> None:
        """Raises LoopedError naming every tensor with a NaN or an infinity. Reads everything."""
        if problems := list(self._find_non_finite()):
            raise LoopedError(_all_reasons(self.path, problems))

    def _find_non_finite(self) -> Iterator[str]:
        for name, tensor in track(list(self.tensors.items()), "checking"):
            if tensor.dtype in FLOAT_TYPES.values() and not is_finite(self._read_stored(name)):
                yield f"{name} holds non-finite values"

    def _read_stored(self, name: str) -> np.ndarray[Any, Any]:
        with safe_open(self.tensors[name].file, framework="numpy") as file:
            return file.get_tensor(name)

    def _collect_tensors(self) -> Iterator[str]:
        """Fills `tensors` from the files' headers; yields what is wrong with the files."""
        for name in ADAPTER_FILES:
            if (self.path / name).exists():
                yield f"{name}: a LoRA/PEFT adapter; merge it into its base model first"
        files, problems = self._weight_files()
        yield from problems
        for file in files:
            try:
                yield from self._collect_file(file)
            except SafetensorError as error:
                yield f"{file.name} is truncated or not safetensors ({error})"
            except OSError as error:
                yield f"{file.name} cannot be read ({error})"
        yield from self._compare_with_index(files)

    def _weight_files(self) -> tuple[list[Path], list[str]]:
        index = self.path / INDEX_FILE
        if not index.exists():
            files = sorted(self.path.glob("*.safetensors"))
            others = (*ADAPTER_FILES, LOOKAHEAD_FILE)
            files = [file for file in files if file.name not in others]
            if files:
                return files, []
            pickles = [file.name for pattern in PICKLE_PATTERNS for file in self.path.glob(pattern)]
            if pickles:
                return [], [
                    f"only pickled weights ({', '.join(sorted(pickles))}); they can run code and "
                    "are never opened: convert them to safetensors first"
                ]
            return [], ["no *.safetensors file"]
        files, problems = [], []
        for name in sorted(set(_index_entries(index).values())):
            file = self.path / name
            # The name decides: files of a hub snapshot are links into its blob store.
            if Path(name).name != name:
                problems.append(f"{INDEX_FILE} points outside the folder: {name}")
            elif not name.endswith(".safetensors"):
                problems.append(f"{INDEX_FILE} names {name}, which is not safetensors")
            elif not file.is_file():
                problems.append(f"{INDEX_FILE} names {name}, which is missing")
            else:
                files.append(file)
        return files, problems

    def _collect_file(self, file: Path) -> Iterator[str]:
        with safe_open(file, framework="numpy") as opened:
            for name in _doubled_names(file):
                yield f"{name} is stored twice in {file.name}"
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                header = opened.get_slice(name)
                if name in self.tensors:
                    yield (
                        f"{name} is stored twice, in {self.tensors[name].file.name} and {file.name}"
                    )
                    continue
                dtype = FLOAT_TYPES.get(header.get_dtype())
                if dtype is None:
                    accepted = ", ".join(FLOAT_TYPES.values())
                    yield f"{name} is {header.get_dtype()}; expected one of {accepted}"
                shape = tuple(header.get_shape())
                self.tensors[name] = StoredTensor(file, shape, dtype or header.get_dtype())

    def _compare_with_index(self, files: list[Path]) -> Iterator[str]:
        index = self.path / INDEX_FILE
        if not index.exists():
            return
        read = {file.name for file in files}
        for name, file_name in sorted(_index_entries(index).items()):
            stored = self.tensors.get(name)
            if file_name in read and (stored is None or stored.file.name != file_name):
                yield f"{INDEX_FILE} places {name} in {file_name}, which does not hold it"

    def _explain_config(self) -> Iterator[str]:
        """Why an unsupported config.json may be the wrong one for these tensors."""
        try:
            model_type = read_json(self.path / "config.json").get("model_type")
        except LoopedError:
            return
        if model_type != "ouro" and any("early_exit_gate" in name for name in self.tensors):
            yield (
                f"config.json describes a {model_type!r} model but the tensors are Ouro's "
                "(they have an exit gate): take config.json from the Ouro checkpoint"
            )


def find_mismatches(config: ModelConfig, tensors: dict[str, StoredTensor]) -> Iterator[str]:
    """What keeps these tensors from being the model of this configuration, a line each."""
    adapters = sorted(name for name in tensors if any(mark in name for mark in ADAPTER_MARKS))
    if adapters:
        yield f"LoRA/PEFT names such as {adapters[0]}: merge the adapter into its base model first"
        return
    layers = {index for name in tensors if (index := layer_index(name)) is not None}
    if layers and max(layers) + 1 != config.num_layers:
        yield (
            f"config.json says {config.num_layers} layers and the tensors have {max(layers) + 1}: "
            "correct num_hidden_layers or take the matching config.json"
        )
    expected = {hugging_face_name(name): shape for name, shape in parameter_shapes(config).items()}
    yield from _summed("missing", sorted(expected.keys() - tensors.keys()))
    yield from _summed("unexpected", sorted(tensors.keys() - expected.keys()))
    for name in sorted(expected.keys() & tensors.keys()):
        if tensors[name].shape != expected[name]:
            yield (f"{name} has shape {list(tensors[name].shape)}, expected {list(expected[name])}")


def is_finite(tensor: np.ndarray[Any, Any]) -> bool:
    """Whether a tensor is free of NaN and infinities."""
    # A sum is a hundred times smaller than the mask that np.isfinite(tensor) would make.
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(tensor.sum(dtype=np.float64)))


def _doubled_names(file: Path) -> list[str]:
    """Names that a safetensors header holds more than once: the library takes the last."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size), object_pairs_hook=list)
    counts = Counter(name for name, _ in header)
    return [name for name, count in counts.items() if count > 1]


def _index_entries(index: Path) -> dict[str, str]:
    entries = read_json(index).get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise LoopedError(f"{index}: expected a weight_map of tensor names to file names")
    return entries


def _summed(what: str, names: list[str], shown: int = 4) -> Iterator[str]:
    if names:
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        yield f"{len(names)} {what}: {', '.join(names[:shown])}{more}"


def _all_reasons(path: Path, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{path}: {problems[0]}"
    return f"{path} cannot be used, for {len(problems)} reasons: " + "; ".join(problems)
