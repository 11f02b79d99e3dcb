"""PTX to functions of one GPU: the driver makes machine code of it."""

import ctypes
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int, c_void_p
from dataclasses import dataclass

from ...errors import DeviceError
from .context import Context

_ENTRY = re.compile(r"\.visible \.entry (\w+)\(([^)]*)\)([^{]*)\{")
_PARAMETER = re.compile(r"\.param \.(\w+) ")
_BLOCK = re.compile(r"\.maxntid (\d+)")
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # of CUjit_option
_LOG_BYTES = 1 << 14
_AGAIN = "remove its folder (`llamba doctor` says which), and it is compiled again"
_THREADS = 4  # the driver takes 30 to 100 ms for a kernel that it sees for the first time


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel as its PTX declares it.

    kinds: a letter a parameter, as `struct` has them: q or f. programmatic: it orders itself after
    the one before, and may be started early.
    """

    symbol: str
    kinds: str
    block: int
    programmatic: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel on a GPU."""

    entry: Entry
    module: int
    handle: int


def entry_of(ptx: str) -> Entry:
    """The one kernel of a PTX text. ValueError: it isn't of that kind."""
    found = _ENTRY.findall(ptx)
    if len(found) != 1 or not (block := _BLOCK.search(found[0][2])):
        raise ValueError("PTX must have one entry, and .maxntid")
    symbol, parameters, _ = found[0]
    letters = {"u64": "q", "b64": "q", "s64": "q", "f32": "f", "b32": "f"}
    kinds = "".join(letters[kind] for kind in _PARAMETER.findall(parameters))
    return Entry(symbol, kinds, int(block[1]), "griddepcontrol.wait" in ptx)


def _own_entry(kernel: str, ptx: str) -> Entry:
    """The entry of a kernel's PTX, which is that kernel's: files may have been mixed up."""
    try:
        entry = entry_of(ptx)
    except (ValueError, KeyError) as error:
        raise DeviceError(
            f"the PTX of the kernel {kernel} is damaged ({error}): {_AGAIN}"
        ) from None
    if not entry.symbol.endswith("_" + kernel.replace(".", "_").replace(":", "__")):
        raise DeviceError(f"the PTX of the kernel {kernel} is that of {entry.symbol}: {_AGAIN}")
    return entry


def load_function(context: Context, kernel: str, ptx: str) -> Function:
    """Make machine code of a kernel. DeviceError: the driver refuses it; with what it says."""
    context.use()
    driver, entry = context.driver, _own_entry(kernel, ptx)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
    values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
    text, module = ptx.encode() + b"\0", ctypes.c_uint64()
    code = driver.code(
        "cuModuleLoadDataEx", ctypes.byref(module), text, len(options), options, values
    )
    if code:
        said = " ".join(log.value.decode(errors="replace").split())
        about = f"{context.label} can't load the kernel {kernel}" + (f": {said}" if said else "")
        raise driver.error("cuModuleLoadDataEx", code, about)
    try:
        handle = driver.handle("cuModuleGetFunction", module.value, entry.symbol.encode())
    except DeviceError:
        driver.code("cuModuleUnload", module.value)
        raise
    return Function(entry, module.value, handle)


def load_functions(context: Context, texts: Mapping[str, str]) -> dict[str, Function]:
    """The same of several, by name, in several threads."""
    with ThreadPoolExecutor(min(_THREADS, len(texts) or 1)) as pool:
        made = {name: pool.submit(load_function, context, name, p) for name, p in texts.items()}
    failed = [future.exception() for future in made.values()]
    found = {name: future.result() for name, future in made.items() if not future.exception()}
    for error in failed:
        if error:
            for function in found.values():
                context.driver.code("cuModuleUnload", function.module)
            raise error
    return found
