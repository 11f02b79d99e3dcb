"""A Hugging Face folder: config.json, and the tensors of model.safetensors or of its shards."""

import contextlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from .safetensors_file import StoredTensor, read_header

INDEX = "model.safetensors.index.json"
_PICKLES = re.compile(r"(pytorch_model.*|consolidated.*|model.*)\.(bin|pth|pt|ckpt)")


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose headers are read and checked; the numbers are read when asked for.

    config: config.json as it is. tensors: by their names, in the order of the files.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: str | Path) -> "Checkpoint":
        """Read the headers.

        ModelNotFoundError: no such folder, or a file is missing. InvalidModelFileError: a file is
        not sound. UnsupportedModelError: weights that are not safetensors.
        """
        folder = Path(folder)
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "not found"
            raise ModelNotFoundError(
                f"{folder}: {what}; give a folder with config.json and *.safetensors"
            )
        check_folder(folder)
        config = read_json(folder / "config.json")
        return cls(folder, config, _tensors(folder))


def check_folder(folder: Path) -> None:
    """InvalidModelFileError: something in it is no file: reading a pipe would wait for ever."""
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a link that leads nowhere
            if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
                raise InvalidModelFileError(f"{path}: not an ordinary file; take it away")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object out of a file. ModelNotFoundError: no file; InvalidModelFileError: not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{path.parent}: {path.name} is missing; the folder must hold a model as it is on "
            "Hugging Face"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidModelFileError(f"{path}: not sound JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidModelFileError(f"{path}: not a JSON object")
    return value


def source_files(folder: Path) -> Iterator[Path]:
    """What a conversion may read of a folder, which may hold an earlier one's result."""
    return (path for path in folder.iterdir() if path.suffix != ".gguf")


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    if (folder / INDEX).is_file():
        return _indexed(folder)
    files = sorted(p for p in folder.glob("model*.safetensors") if p.is_file())
    if not files:
        raise _no_safetensors(folder)
    _check_all_there(folder, files)
    found: dict[str, StoredTensor] = {}
    for path in files:
        for name, tensor in read_header(path).items():
            if name in found:
                raise InvalidModelFileError(
                    f"{path}: tensor {name!r} is also in {found[name].path.name}"
                )
            found[name] = tensor
    return found


def _check_all_there(folder: Path, files: list[Path]) -> None:
    """Without an index the names alone tell how many shards there are."""
    names = {p.name for p in files}
    for name in names:
        if match := re.fullmatch(r"(model-)(\d{5})-of-(\d{5})(\.safetensors)", name):
            for number in range(1, int(match[3]) + 1):
                shard = f"{match[1]}{number:05d}-of-{match[3]}{match[4]}"
                if shard not in names:
                    raise ModelNotFoundError(f"{folder}: {shard} is missing")


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    """The tensors that the index names, each in the file that it says."""
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(v, str) for v in where.values()):
        raise InvalidModelFileError(f"{folder / INDEX}: weight_map is not a map of names to files")
    found: dict[str, StoredTensor] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name:  # an index must not reach outside of its folder
            raise InvalidModelFileError(f"{folder / INDEX}: {name!r} is not the name of a file")
        path = folder / name
        if not path.is_file():
            raise ModelNotFoundError(
                f"{folder}: {name} is missing, which {INDEX} names for "
                f"{sum(v == name for v in where.values())} tensors"
            )
        for tensor in read_header(path).values():
            if where.get(tensor.name) != name:
                raise InvalidModelFileError(f"{path}: tensor {tensor.name!r} is not in {INDEX}")
            found[tensor.name] = tensor
    if absent := sorted(where.keys() - found.keys()):
        raise InvalidModelFileError(
            f"{folder / where[absent[0]]}: tensor {absent[0]!r} is not there, though {INDEX} says "
            f"so{f' (nor {len(absent) - 1} others)' if len(absent) > 1 else ''}"
        )
    return found


def _no_safetensors(folder: Path) -> ModelNotFoundError | UnsupportedModelError:
    pickles = sorted(p.name for p in folder.iterdir() if _PICKLES.fullmatch(p.name))
    if pickles:
        return UnsupportedModelError(
            f"{folder}: only {pickles[0]}, a pickle, which could run any code and is not read; "
            "take the model's *.safetensors, or save it once more with transformers' "
            "save_pretrained(FOLDER)"
        )
    if any(folder.glob("*.gguf")):
        return ModelNotFoundError(f"{folder}: no *.safetensors; the model is a GGUF file already")
    return ModelNotFoundError(f"{folder}: neither model.safetensors nor {INDEX} is there")
