"""`looped export`: a converted folder becomes a Hugging Face checkpoint again, bit for bit."""

import json
import logging
import shutil
from math import prod
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file

from looped.errors import LoopedError
from looped.progress import track

from .folder import COMPANION_FILES, ConvertedFolder, checksum
from .lookahead import check_lookahead_gate
from .names import hugging_face_name
from .source import INDEX_FILE
from .staging import staged_folder

logger = logging.getLogger(__name__)

MAX_SHARD_BYTES = 5 * 10**9


def export_checkpoint(
    source: Path,
    destination: Path,
    *,
    overwrite: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes config.json, the tokenizer files and safetensors that transformers loads.

    Args:
        source: a converted folder.
        destination: folder to make.
        overwrite: replace `destination` if it is a model folder.
        max_shard_bytes: a model larger than this is split over several files with an index.

    Raises:
        LoopedError: when the source is not a converted folder or a tensor does not match its
            checksum; nothing has been written then.
    """
    if not ConvertedFolder.is_at(source):
        raise LoopedError(f"{source} is not a converted folder; make one with `looped convert`")
    folder = ConvertedFolder(source)
    check_lookahead_gate(folder)
    names = {hugging_face_name(name): name for name in folder.shapes}
    itemsize = 4 if folder.dtype == "float32" else 2
    plan = split_state_dict_into_shards_factory(
        {theirs: prod(folder.shapes[ours]) * itemsize for theirs, ours in names.items()},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    with staged_folder(destination, source=source, overwrite=overwrite) as staged:
        for file, members in track(list(plan.filename_to_tensors.items()), "exporting"):
            tensors = {}
            for theirs in members:
                tensors[theirs] = folder.read(names[theirs])
                if checksum(tensors[theirs]) != folder.manifest.checksums[names[theirs]]:
                    raise LoopedError(
                        f"{source}: {names[theirs]} does not match its checksum in the manifest; "
                        "the folder is damaged, convert the checkpoint again"
                    )
            save_file(tensors, staged / file, metadata={"format": "pt"})
            (staged / file).chmod(0o644)
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            (staged / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for name in ("config.json", *COMPANION_FILES):
            if (source / name).exists():
                shutil.copy(source / name, staged / name)
    logger.info("exported %s to %s (%s)", source, destination, folder.dtype)
