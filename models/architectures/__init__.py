"""The architectures that are run: each module here but this one declares one, as ARCHITECTURE."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from ..architecture import Architecture

__all__ = ["ARCHITECTURES"]


class _Architectures(Mapping[str, Architecture]):
    """By name; a module is imported when its architecture is asked for (all of them take 10 ms)."""

    def __init__(self) -> None:
        # A module has its architecture's name, but for the signs that a module's can't have.
        self._modules = {_plain(info.name): info.name for info in pkgutil.iter_modules(__path__)}

    def __getitem__(self, name: str) -> Architecture:
        module = importlib.import_module(f".{self._modules[_plain(name)]}", __name__)
        if module.ARCHITECTURE.name != name:
            raise KeyError(name)
        return module.ARCHITECTURE

    def __iter__(self) -> Iterator[str]:
        for module in self._modules.values():
            yield importlib.import_module(f".{module}", __name__).ARCHITECTURE.name

    def __len__(self) -> int:
        return len(self._modules)


def _plain(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


ARCHITECTURES: Mapping[str, Architecture] = _Architectures()
