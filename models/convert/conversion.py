"""A checkpoint to a GGUF file: prepared and checked as a whole first, then written as a stream."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidModelFileError, InvalidParameterError
from ..gguf_pairs import Pair, replaced
from ..gguf_writer import GGUFWriter, NewTensor
from ..output_targets import check_no_source
from ..progress import Progress
from ..quantize_metadata import parse_override as typed_override
from .checked import TYPE_IDS, check_layers, check_runs
from .checkpoint import Checkpoint, source_files
from .config import Config, odd_values
from .dense_layers import dense_layers, dense_values
from .families import family_of
from .family import Family
from .floats import Float32, to_bytes
from .general import FILE_TYPES, QUANTIZATION_VERSION, Value, general_values
from .lora_merge import merged
from .metadata import architecture_values, to_pairs
from .naming import file_name
from .peft import PeftAdapter
from .plan import Planned, choose_forms, plan, usual_outtype
from .vocabulary import vocabulary_pairs

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
logger = logging.getLogger(__name__)

_CHUNK = 1 << 22  # elements that are converted at a time
_NAMES = ("name", "basename", "size_label", "finetune", "version")  # make the file's usual name
# From here on a number, or the scale of its block, rounds to infinity.
_LIMITS = {"F16": 65520.0, "BF16": 511 / 256 * 2.0**127, "Q8_0": 65520.0 * 127}


@dataclass(frozen=True, eq=False)
class Conversion:
    """A file that is ready to be written: everything but the numbers was read and checked.

    values: the metadata but for the vocabulary. outtype: the format of most tensors. adapters:
    the folders of those that are merged, each with its scale.
    """

    checkpoint: Checkpoint
    class_name: str
    family: Family
    config: Config
    outtype: str
    values: Mapping[str, Value]
    pairs: Sequence[Pair]
    planned: Sequence[Planned]
    adapters: Sequence[tuple[Path, float]] = ()

    @property
    def unused(self) -> list[str]:
        """The checkpoint's tensors that the file doesn't need."""
        used = {name for entry in self.planned for name in entry.source_names}
        scales = (".activation_scale", "_scale_inv")
        return [n for n in self.checkpoint.tensors if n not in used and not n.endswith(scales)]

    @property
    def tensors(self) -> list[NewTensor]:
        """The file's tensors in its order."""
        return [NewTensor(p.name, TYPE_IDS[p.form], p.shape) for p in self.planned]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def file_name(self) -> str:
        """What the file is usually called, by the naming convention."""

        def text(key: str) -> str | None:
            return self.values[f"general.{key}"][1] if f"general.{key}" in self.values else None

        name, basename, size, finetune, version = map(text, _NAMES)
        return file_name(name, basename, size, finetune, version, self.outtype)

    def write(
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> str:
        """Write the file and return its SHA-256; memory holds a tensor or two.

        OutputError: it can't be written. InvalidModelFileError: a number is not finite, or too
        large for the format. InvalidParameterError: `path` is a file of the checkpoint.
        """
        for folder in (self.checkpoint.folder, *(adapter for adapter, _ in self.adapters)):
            check_no_source(path, source_files(folder))
        done, total = 0, self.num_bytes
        with GGUFWriter(path, self.pairs, self.tensors, overwrite=overwrite) as writer:
            for entry in self.planned:
                for data in self._bytes(entry):
                    writer.write(data)
                    done += len(data)
                    if progress is not None:
                        progress("convert", done, total)
            writer.finish()
            return writer.sha256

    def _bytes(self, entry: Planned) -> Iterator[NDArray[np.uint8]]:
        """A tensor's bytes, a few rows at a time."""
        if entry.packed:
            for _, part in sorted(entry.parts.items()):
                yield from part.blocks(self.config)
            return
        for values in self._chunks(entry):
            yield to_bytes(self._checked(values, entry), entry.form)

    def _chunks(self, entry: Planned) -> Iterator[Float32]:
        """A tensor's numbers, (rows, columns) at a time."""
        if entry.made is not None:
            yield entry.made
        for _, part in sorted(entry.parts.items()):
            yield from part.chunks(self.config, self._scale_block(), _CHUNK)

    def _scale_block(self) -> tuple[int, int] | None:
        quantized = self.config.get("quantization_config")
        block = quantized.get("weight_block_size") if isinstance(quantized, dict) else None
        if not block:
            return None
        if not (isinstance(block, list) and len(block) == 2 and all(map(_is_size, block))):
            raise self.config.invalid("weight_block_size", block, "two positive whole numbers")
        return block[0], block[1]

    def _checked(self, values: Float32, entry: Planned) -> Float32:
        if not np.isfinite(values).all():
            raise InvalidModelFileError(
                f"{self.checkpoint.folder}: tensor {entry.source} holds numbers that are not "
                f"finite ({np.count_nonzero(~np.isfinite(values))} of the first "
                f"{values.size} looked at): the checkpoint is damaged"
            )
        limit = _LIMITS.get(entry.form)
        if limit is not None and values.size and (largest := np.abs(values).max()) >= limit:
            better = "f32" if largest >= _LIMITS["BF16"] else "bf16 or f32"
            raise InvalidModelFileError(
                f"{self.checkpoint.folder}: tensor {entry.source} holds {largest:g}, "
                f"which {entry.form} can't: convert with --outtype {better}"
            )
        return values


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def prepare(
    folder: str | Path,
    *,
    outtype: str = "auto",
    name: str | None = None,
    overrides: Mapping[str, Value] | None = None,
    pre: str | None = None,
    adapters: Sequence[tuple[PeftAdapter, float]] = (),
) -> Conversion:
    """Read a folder's headers and files, and settle what the file will be.

    outtype: one of OUTTYPES. name: `general.name`. overrides: keys to add or to replace.
    pre: the pre-tokenizer, where it isn't recognised. adapters: to be merged, with their scales.

    Raises:
        ModelNotFoundError: no such folder, or a file is missing.
        InvalidModelFileError: a file is not sound, or tensors and config.json disagree.
        UnsupportedModelError: a class, a tensor or a vocabulary that is not converted.
        InvalidParameterError: an unknown outtype.
    """
    if outtype not in OUTTYPES:
        raise InvalidParameterError(f"outtype {outtype!r}: must be one of {', '.join(OUTTYPES)}")
    base = Checkpoint.open(folder)
    checkpoint = merged(base, adapters) if adapters else base
    path = checkpoint.folder / "config.json"
    with odd_values(checkpoint.folder):
        class_name, family = family_of(checkpoint.config, path)
        config = Config(checkpoint.config, family.defaults, path=path)
        if family.check is not None:
            family.check(config)
        layers = dense_layers(checkpoint.folder) if family.dense else []
        planned = [*plan(checkpoint, family, config), *layers]
        form = usual_outtype(base) if outtype == "auto" else outtype.upper()
        choose_forms(planned, form)
        if any(entry.packed for entry in planned) and form != "Q8_0":
            form = "MXFP4_MOE"
        shapes = {entry.name: entry.shape for entry in planned}
        values = general_values(
            checkpoint.folder,
            checkpoint.config,
            shapes,
            architecture=family.architecture,
            name=name,
        )
        values |= architecture_values(checkpoint.folder, family, config, class_name)
        values |= dense_values(family.architecture, layers)
        values["general.file_type"] = ("u32", FILE_TYPES[form])
        values["general.quantization_version"] = ("u32", QUANTIZATION_VERSION)
        values |= overrides or {}
        check_runs(checkpoint.folder, family, values, planned)
        check_layers(checkpoint.folder, family, config, planned)
        vocabulary = vocabulary_pairs(
            checkpoint.folder, config, family.architecture, shapes["token_embd.weight"][0], pre=pre
        )
        pairs = replaced(to_pairs(values), vocabulary)
        pairs = replaced(pairs, to_pairs(overrides or {}))
    folders = [(adapter.folder, scale) for adapter, scale in adapters]
    conversion = Conversion(
        checkpoint, class_name, family, config, form, values, pairs, planned, folders
    )
    if idle := [n for n in conversion.unused if checkpoint.tensors[n] is not base.tensors[n]]:
        logger.warning(
            "%s: %d tensors that the adapter changes are of parts that aren't converted (%s ...)",
            folder, len(idle), idle[0],
        )  # fmt: skip
    return conversion


def parse_override(text: str) -> tuple[str, Value]:
    """KEY=VALUE, or KEY=TYPE:VALUE with int, float, bool or str as in llama.cpp's --override-kv.

    InvalidParameterError: it is neither, or a key that the layout or the file's name depends on.
    """
    match = re.fullmatch(r"([A-Za-z0-9_.\-]+)=(?:(int|float|bool|str):)?(.*)", text, re.DOTALL)
    if match is None:
        raise InvalidParameterError(f"{text!r}: expected KEY=VALUE, such as general.author=me")
    key, kind = match[1], match[2] or "str"
    found = typed_override(f"{key}={kind}:{match[3]}", "--metadata")
    if kind != "str" and key in [f"general.{name}" for name in _NAMES]:
        raise InvalidParameterError(f"--metadata {text!r}: {key} is a text, write {key}=VALUE")
    return key, (found.kind, found.value)
