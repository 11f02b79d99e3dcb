"""A PEFT adapter -> the GGUF adapter that runtimes read (`--lora`), as convert_lora_to_gguf writes.

Both matrices of a change keep their sense: what is done to a matrix W of the checkpoint on its way
into a file (rows reordered, parts cut out, turned around) is done to B, or to A where W is turned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import (
    InvalidModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from ..gguf_pairs import Pair
from ..gguf_writer import GGUFWriter, NewTensor
from ..output_targets import check_no_source
from .checked import TYPE_IDS
from .checkpoint import Checkpoint, read_json, source_files
from .config import Config, odd_values
from .families import family_of
from .family import Family, Move
from .floats import Float32, to_bytes
from .general import QUANTIZATION_VERSION, Value, general_values
from .metadata import to_pairs
from .peft import CONFIG, LowRank, PeftAdapter
from .plan import places

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_PROBE = 3  # columns of the array by which a move is told

Halves = tuple[Float32, Float32]  # (..., rank, columns) and (..., rows, rank)


@dataclass(frozen=True, eq=False)
class AdapterConversion:
    """A file that is ready to be written. matrices: lora_a and lora_b by GGUF's names."""

    adapter: PeftAdapter
    class_name: str
    family: Family
    values: Mapping[str, Value]
    matrices: Mapping[str, Halves]
    form: str

    @property
    def pairs(self) -> list[Pair]:
        """The metadata."""
        return to_pairs(self.values)

    @property
    def tensors(self) -> list[tuple[NewTensor, Float32]]:
        """The file's tensors in its order, with their numbers."""
        return [
            (NewTensor(f"{name}.{suffix}", TYPE_IDS[form], values.shape), values)
            for name, halves in self.matrices.items()
            for suffix, values in zip(("lora_a", "lora_b"), halves, strict=True)
            if (form := _form(self.form, values))
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.num_bytes for tensor, _ in self.tensors)

    def write(self, path: Path, *, overwrite: bool = False) -> str:
        """Write the file and return its SHA-256.

        OutputError: it can't be written. InvalidParameterError: `path` is a file of the adapter.
        """
        check_no_source(path, source_files(self.adapter.folder))
        tensors = self.tensors
        with GGUFWriter(path, self.pairs, [t for t, _ in tensors], overwrite=overwrite) as writer:
            for _, values in tensors:
                writer.write(to_bytes(values, _form(self.form, values)))
            writer.finish()
            return writer.sha256


def _form(form: str, values: Float32) -> str:
    return "F16" if form == "Q8_0" and values.shape[-1] % 32 else form


def prepare_adapter(
    folder: str | Path,
    base: str | Path | None = None,
    *,
    outtype: str = "auto",
    name: str | None = None,
    overrides: Mapping[str, Value] | None = None,
) -> AdapterConversion:
    """Read an adapter, and move its matrices to where they belong.

    base: the folder of the model that it was trained on, of which config.json is enough, or that
    file; by default what adapter_config.json names, if that is a folder. outtype: of the matrices;
    auto: f32. name: `general.name`. overrides: keys to add or to replace.

    Raises:
        ModelNotFoundError: a file is missing, or the base is not known.
        InvalidModelFileError: a file is not sound, or sizes differ.
        UnsupportedModelError: a kind of adapter or model that is not converted.
    """
    adapter = PeftAdapter.open(folder)
    path = _config_path(adapter, base)
    raw = read_json(path)
    with odd_values(path.parent):
        class_name, family = family_of(raw, path)
        config = Config(raw, family.defaults, path=path)
        checkpoint = Checkpoint(path.parent, raw, {})
        if adapter.saved:
            saved = next(iter(adapter.saved))
            raise UnsupportedModelError(
                f"{adapter.folder}: it holds {saved} as a whole (modules_to_save, or biases), "
                "which an adapter's file can't; merge it: llamba convert DIR OUT --merge-lora "
                f"{adapter.folder}"
            )
        alpha = adapter.one_alpha
        experts: dict[str, dict[int, Halves]] = {}
        for low in adapter.changes.values():
            for target, expert, piece in places(f"{low.module}.weight", family, config, checkpoint):
                halves = _halves(adapter, low, piece.move, config, alpha, target)
                experts.setdefault(target, {})[expert] = halves
        if not experts:
            raise UnsupportedModelError(f"{adapter.folder}: it changes nothing that is converted")
        matrices = {target: _stacked(adapter, target, found) for target, found in experts.items()}
        _check_tied(adapter, matrices, config)
        values = general_values(adapter.folder, {}, {}, architecture=family.architecture, name=name)
        values.pop("general.size_label", None)  # of the model that it belongs to
        values |= {
            "general.type": ("str", "adapter"),
            "adapter.type": ("str", "lora"),
            "adapter.lora.alpha": ("f32", alpha),
            "general.quantization_version": ("u32", QUANTIZATION_VERSION),
        }
        values |= overrides or {}
        to_pairs(values)  # that it can be written
    form = "F32" if outtype == "auto" else outtype.upper()
    return AdapterConversion(adapter, class_name, family, values, matrices, form)


def _config_path(adapter: PeftAdapter, base: str | Path | None) -> Path:
    named = adapter.config.get("base_model_name_or_path")
    if base is None and isinstance(named, str) and (Path(named) / "config.json").is_file():
        base = named
    if base is None:
        raise ModelNotFoundError(
            f"{adapter.folder}: which model it belongs to is not known here ({named!r} in {CONFIG} "
            "is no folder); give that model's folder or its config.json with --base"
        )
    path = Path(base)
    return path / "config.json" if path.is_dir() else path


def _halves(
    adapter: PeftAdapter, low: LowRank, move: Move | None, config: Config, alpha: float, target: str
) -> Halves:
    """lora_a and lora_b of one target, the factor in them as far as alpha doesn't say it."""
    up, down = low.halves()  # (rows, rank), (rank, columns)
    own = np.float32(low.factor * low.rank / alpha)
    if low.embedding:
        if target != _EMBEDDING or move is not None:
            raise UnsupportedModelError(
                f"{adapter.folder}: {low.module} is an embedding, {target} is not"
            )
        return np.ascontiguousarray(up), np.ascontiguousarray(down.T) * own
    if target == _EMBEDDING:
        up, down = up, down.T  # by token, and turned, as for an embedding
        return np.ascontiguousarray(up), np.ascontiguousarray(down) * own
    if move is not None:
        rows, is_turned = _row_order(adapter, low, move, config)
        if is_turned:
            up, down = down.T, up.T
        else:
            up = up[rows]
    return np.ascontiguousarray(down), np.ascontiguousarray(up) * own


def _row_order(
    adapter: PeftAdapter, low: LowRank, move: Move, config: Config
) -> tuple[NDArray[np.intp], bool]:
    """(the rows that a move takes, in their order; whether it turns the matrix instead)."""
    rows = low.shape[0]
    probe = np.arange(rows * _PROBE).reshape(rows, _PROBE)
    try:
        moved = move(probe, config)
    except (ValueError, IndexError) as error:
        raise InvalidModelFileError(
            f"{adapter.folder}: {low.module} has {rows} rows, which don't fit the model's "
            f"config.json ({error})"
        ) from None
    if moved.shape == (_PROBE, rows) and np.array_equal(moved, probe.T):
        return np.empty(0, np.intp), True
    order = moved[:, 0] // _PROBE if moved.ndim == 2 else np.empty(0, np.intp)
    if moved.ndim != 2 or not np.array_equal(moved, probe[order]):
        raise UnsupportedModelError(
            f"{adapter.folder}: {low.module} is a matrix whose parts are moved in a way that can't "
            "be done to an adapter; merge it instead: llamba convert DIR OUT --merge-lora "
            f"{adapter.folder}"
        )
    return order, False


def _stacked(adapter: PeftAdapter, target: str, found: Mapping[int, Halves]) -> Halves:
    """The halves of one target; of experts stacked, all of which must be there."""
    if -1 in found:
        return found[-1]
    parts = [found.get(expert) for expert in range(max(found) + 1)]
    shapes = {(a.shape, b.shape) for a, b in filter(None, parts)}
    if None in parts or len(shapes) > 1:
        what = f"expert {parts.index(None)} is missing" if None in parts else "ranks differ"
        raise UnsupportedModelError(
            f"{adapter.folder}: of {target}, {what}: a file holds all experts or none; merge it "
            f"instead: llamba convert DIR OUT --merge-lora {adapter.folder}"
        )
    whole = [half for half in parts if half is not None]
    return np.stack([a for a, _ in whole]), np.stack([b for _, b in whole])


def _check_tied(adapter: PeftAdapter, matrices: Mapping[str, Any], config: Config) -> None:
    tied = config.get("tie_word_embeddings", False)
    if tied and _OUTPUT in matrices:
        raise UnsupportedModelError(
            f"{adapter.folder}: it changes the output, which is tied to the embeddings in this "
            "model, so that its file has none; merge it with PEFT, with tie_word_embeddings off"
        )
