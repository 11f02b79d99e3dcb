"""The architectures that are run: each module here but this one declares one, as ARCHITECTURE."""

import importlib
import pkgutil

from ..architecture import Architecture

__all__ = ["ARCHITECTURES"]


def _declared(module: str) -> Architecture:
    return importlib.import_module(f".{module}", __name__).ARCHITECTURE


ARCHITECTURES: dict[str, Architecture] = {
    found.name: found for found in (_declared(info.name) for info in pkgutil.iter_modules(__path__))
}
