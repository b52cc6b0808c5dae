"""A Hugging Face checkpoint folder: what it holds, and every reason not to trust it.

Headers are read first and compared with the configuration, so that a wrong checkpoint is refused
in one message that names all of its faults, before a byte is written anywhere.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from looped.config import ModelConfig
from looped.errors import ForeignCheckpointError, LoopedError, brief
from looped.model_files import check_pointers, read_json
from looped.models import FAMILIES, family_of, parameter_shapes, read_config
from looped.models.quantisation import check_tensors
from looped.progress import track

from .folder import INDEX_FILE, LOOKAHEAD_FILE
from .foreign import ADAPTER_FILES, check_folder

# safetensors' names of the types that are accepted, and ours.
FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ACCEPTED = ", ".join(FLOAT_TYPES.values())
# Beginnings of its names of other types: I8 is int8, F8_E4M3 float8_e4m3.
OTHER_TYPES = {"F": "float", "I": "int", "U": "uint"}

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
ADAPTER_MARKS = ("base_model.model.", ".lora_", "lora_A", "lora_B")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what its header says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class HuggingFaceFolder:
    """A looped model's checkpoint in Hugging Face form, checked against its own config.json.

    Args:
        path: a folder with config.json and one or many safetensors files.

    Raises:
        ForeignCheckpointError: the folder holds something else: a quantised model, one of another
            family, Git LFS pointers.
        LoopedError: when the folder is missing, its configuration is unsupported or its tensors
            do not fit; the message lists all reasons, those of one kind as one.
    """

    def __init__(self, path: Path) -> None:
        check_folder(path)
        self.path = path
        self.tensors: dict[str, StoredTensor] = {}
        problems = list(self._collect_tensors())
        config = None
        try:
            config = read_config(path / "config.json")
        except ForeignCheckpointError as error:
            raise self._explained(error) from None
        except LoopedError as error:
            # The folder is named in front of all reasons.
            problems = [str(error).removeprefix(f"{path}/"), *problems]
        dtypes = {name: tensor.dtype for name, tensor in self.tensors.items()}
        check_tensors(dtypes, str(path))
        problems += _find_other_types(dtypes)
        if config is not None:
            problems += find_mismatches(config, self.tensors)
        if config is None or problems:
            raise LoopedError(_all_reasons(path, [*problems, *self._find_non_finite()]))
        self.config = config
        self.shapes = parameter_shapes(config)

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every tensor exactly, of the three that are stored."""
        dtypes = {tensor.dtype for tensor in self.tensors.values()}
        return dtypes.pop() if len(dtypes) == 1 else "float32"

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The stored tensor under our name for it, copied into memory."""
        return self._read_stored(family_of(self.config).tensor_names.hugging_face_name(name))

    def check_values(self) -> None:
        """LoopedError if there is a NaN or an infinity in any tensor. Reads everything."""
        if problems := list(self._find_non_finite()):
            raise LoopedError(_all_reasons(self.path, problems))

    def _find_non_finite(self) -> Iterator[str]:
        names = [
            name
            for name, tensor in track(list(self.tensors.items()), "checking")
            if tensor.dtype in FLOAT_TYPES.values() and not is_finite(self._read_stored(name))
        ]
        yield from _folded("tensors", names, "holds non-finite values", "hold non-finite values")

    def _read_stored(self, name: str) -> np.ndarray[Any, Any]:
        with safe_open(self.tensors[name].file, framework="numpy") as file:
            return file.get_tensor(name)

    def _collect_tensors(self) -> Iterator[str]:
        """Fills `tensors` from the files' headers; yields what is wrong with the files."""
        files, problems = self._weight_files()
        check_pointers(files)
        yield from problems
        damaged: dict[str, str] = {}
        doubled: dict[str, str] = {}
        for file in files:
            try:
                doubled |= self._collect_file(file)
            except SafetensorError as error:
                damaged[file.name] = f" ({brief(error, 100)})"
            except OSError as error:
                yield f"{file.name} cannot be read ({brief(error, 100)})"
        what = "truncated or not safetensors"
        yield from _folded("files", damaged, f"is {what}", f"are {what}")
        yield from _folded("tensors", doubled, "is stored twice", "are stored twice")
        yield from self._compare_with_index(files)

    def _weight_files(self) -> tuple[list[Path], list[str]]:
        """Files to read, and what is wrong with the choice."""
        if (self.path / INDEX_FILE).exists():
            return self._indexed_files()
        others = (*ADAPTER_FILES, LOOKAHEAD_FILE)
        files = [file for file in self.path.glob("*.safetensors") if file.name not in others]
        if files:
            return sorted(files), []
        pickles = [file.name for pattern in PICKLE_PATTERNS for file in self.path.glob(pattern)]
        if pickles:
            return [], [
                f"only pickled weights ({_shown(sorted(pickles))}); they can run code and are "
                "never opened: convert them to safetensors first"
            ]
        return [], ["no *.safetensors file"]

    def _indexed_files(self) -> tuple[list[Path], list[str]]:
        files = []
        faults: dict[str, list[str]] = {}
        for name in sorted(set(_index_entries(self.path / INDEX_FILE).values())):
            file = self.path / name
            # The name decides: files of a hub snapshot are links into its blob store.
            if Path(name).name != name:
                faults.setdefault("points outside the folder: {}", []).append(name)
            elif not name.endswith(".safetensors"):
                faults.setdefault("names {}, which is not safetensors", []).append(name)
            elif not file.is_file():
                faults.setdefault("names {}, which is missing", []).append(name)
            else:
                files.append(file)
        return files, [
            f"{INDEX_FILE} {reason.format(_shown(names))}" for reason, names in faults.items()
        ]

    def _collect_file(self, file: Path) -> dict[str, str]:
        """Adds a file's tensors; where those lie that are stored twice, by name."""
        with safe_open(file, framework="numpy") as opened:
            doubled = dict.fromkeys(_doubled_names(file), f" in {file.name}")
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                header = opened.get_slice(name)
                if name in self.tensors:
                    doubled[name] = f", in {self.tensors[name].file.name} and {file.name}"
                    continue
                dtype = FLOAT_TYPES.get(header.get_dtype()) or _other_type(header.get_dtype())
                self.tensors[name] = StoredTensor(file, tuple(header.get_shape()), dtype)
        return doubled

    def _compare_with_index(self, files: list[Path]) -> Iterator[str]:
        index = self.path / INDEX_FILE
        if not index.exists():
            return
        read = {file.name for file in files}
        misplaced = {}
        for name, file_name in sorted(_index_entries(index).items()):
            stored = self.tensors.get(name)
            if file_name in read and (stored is None or stored.file.name != file_name):
                misplaced[name] = f" in {file_name}, which does not hold it"
        if misplaced:
            name, place = next(iter(misplaced.items()))
            more = f" (and {len(misplaced) - 1} more like it)" if len(misplaced) > 1 else ""
            yield f"{INDEX_FILE} places {name}{place}{more}"

    def _explained(self, error: ForeignCheckpointError) -> ForeignCheckpointError:
        """The error of a foreign config.json, or why it is the wrong one for these tensors."""
        model_type = read_json(self.path / "config.json").get("model_type")
        for family in FAMILIES.values():
            mark = family.tensor_mark
            if mark is None or model_type == family.model_type:
                continue
            if any(mark in name for name in self.tensors):
                return ForeignCheckpointError(
                    f"config.json describes a {brief(repr(model_type), 40)} model but the tensors "
                    f"are {family.name}'s (they have an {mark}): take config.json from the "
                    f"{family.name} checkpoint: {self.path}"
                )
        return error


def find_mismatches(config: ModelConfig, tensors: dict[str, StoredTensor]) -> Iterator[str]:
    """What keeps these tensors from being the model of this configuration, a line each."""
    adapters = sorted(name for name in tensors if any(mark in name for mark in ADAPTER_MARKS))
    if adapters:
        yield f"LoRA/PEFT names such as {adapters[0]}: merge the adapter into its base model first"
        return
    names = family_of(config).tensor_names
    layers = {index for name in tensors if (index := names.layer_index(name)) is not None}
    if layers and max(layers) + 1 != config.num_layers:
        yield (
            f"config.json says {config.num_layers} layers and the tensors have {max(layers) + 1}: "
            "correct num_hidden_layers or take the matching config.json"
        )
    expected = {
        names.hugging_face_name(name): shape for name, shape in parameter_shapes(config).items()
    }
    for what, different in (
        ("missing", sorted(expected.keys() - tensors.keys())),
        ("unexpected", sorted(tensors.keys() - expected.keys())),
    ):
        if different:
            start = f"{len(different)} {what}"
            is_short = len(different) < 3
            yield start + (f": {', '.join(different)}" if is_short else f", such as {different[0]}")
    misshaped = {
        name: f" {list(tensors[name].shape)}, expected {list(expected[name])}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name]
    }
    yield from _folded("tensors", misshaped, "has shape", "have another shape")


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


def _find_other_types(dtypes: Mapping[str, str]) -> Iterator[str]:
    """Tensors that are no floats of a kind that is accepted, a reason for each type."""
    for dtype in sorted(set(dtypes.values()) - set(FLOAT_TYPES.values())):
        names = sorted(name for name, found in dtypes.items() if found == dtype)
        details = dict.fromkeys(names, f"; expected one of {ACCEPTED}")
        yield from _folded("tensors", details, f"is {dtype}", f"are {dtype}")


def _other_type(stored: str) -> str:
    letter = stored[:1]
    return (stored.replace(letter, OTHER_TYPES.get(letter, letter), 1)).lower()


def _folded(
    things: str, names: Mapping[str, str] | Sequence[str], one: str, many: str
) -> Iterator[str]:
    """One reason for all that have the same fault, or none.

    Args:
        things: what the names are of.
        names: of those that have it; as a mapping, with what is to be said of each in the end.
        one: what is wrong, said of one.
        many: the same of several.
    """
    if not names:
        return
    first = next(iter(names))
    detail = names[first] if isinstance(names, Mapping) else ""
    if len(names) == 1:
        yield f"{first} {one}{detail}"
    else:
        yield f"{len(names)} {things} {many}, such as {first}{detail}"


def _shown(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _all_reasons(path: Path, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{path}: {problems[0]}"
    return f"{path} cannot be used, for {len(problems)} reasons: " + "; ".join(problems)
