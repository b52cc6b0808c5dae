"""`looped export`: a converted folder becomes a Hugging Face checkpoint again, bit for bit."""

import logging
import shutil
from pathlib import Path

from looped.errors import LoopedError
from looped.models import family_of

from .folder import COMPANION_FILES, DTYPES, ConvertedFolder, Tensor, checksum
from .lookahead import check_lookahead_gate
from .shards import write_shards
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
    tensor_names = family_of(folder.config).tensor_names
    names = {tensor_names.hugging_face_name(name): name for name in folder.shapes}
    shapes = {theirs: folder.shapes[ours] for theirs, ours in names.items()}

    def checked(name: str) -> Tensor:
        tensor = folder.read(names[name])
        if checksum(tensor) != folder.manifest.checksums[names[name]]:
            raise LoopedError(
                f"{source}: {names[name]} does not match its checksum in the manifest; "
                "the folder is damaged, convert the checkpoint again"
            )
        return tensor

    with staged_folder(destination, source=source, overwrite=overwrite) as staged:
        write_shards(
            staged,
            shapes,
            DTYPES[folder.dtype],
            checked,
            description="exporting",
            max_shard_bytes=max_shard_bytes,
        )
        for name in ("config.json", *COMPANION_FILES):
            if (source / name).exists():
                shutil.copy(source / name, staged / name)
    logger.info("exported %s to %s (%s)", source, destination, folder.dtype)
