"""ELF object files, as LLVM writes them for kernels: 64 bits, little endian, relocatable.

What is read is checked: sizes and offsets against the bytes that are there.
"""

import struct
from typing import NamedTuple

from ..errors import KernelError

_MAGIC = b"\x7fELF\x02\x01"
_RELOCATABLE = 1
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8  # section types
_ALLOCATED = 2  # section flag: part of the loaded code
UNDEFINED, ABSOLUTE = 0, 0xFFF1  # section numbers of symbols
MACHINES = {62: "x86_64", 183: "aarch64"}


class Section(NamedTuple):
    """A section; `data` is empty where it has none in the file."""

    kind: int
    flags: int
    offset: int
    num_bytes: int
    link: int
    info: int
    align: int
    data: bytes

    @property
    def is_loaded(self) -> bool:
        """Whether code needs it at run time."""
        return bool(self.flags & _ALLOCATED)


class Symbol(NamedTuple):
    """A name, or a section's start: so many bytes from the start of a section."""

    name: str
    section: int
    value: int


class Relocation(NamedTuple):
    """A place in section `section` that depends on the address of `symbol` plus `addend`."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


class ObjectFile(NamedTuple):
    """What of an object file matters for loading it."""

    arch: str
    sections: list[Section]
    symbols: list[Symbol]
    relocations: list[Relocation]

    @property
    def undefined(self) -> set[str]:
        """Names that it leaves to others."""
        return {s.name for s in self.symbols if s.section == UNDEFINED and s.name}


def is_elf(code: bytes) -> bool:
    """Whether it is an object file of this kind (and not macOS's or Windows's)."""
    return code.startswith(_MAGIC)


def read_object(code: bytes) -> ObjectFile:
    """Parse an object file.

    Raises:
        KernelError: it is none, or a part of it lies outside its bytes.
    """
    try:
        return _read(code)
    except (struct.error, IndexError, ValueError) as error:
        raise KernelError(f"the object code of a kernel is damaged: {error}") from error


def _read(code: bytes) -> ObjectFile:
    if not is_elf(code):
        raise ValueError("no 64-bit ELF file")
    kind, machine = struct.unpack_from("<HH", code, 16)
    if kind != _RELOCATABLE or machine not in MACHINES:
        raise ValueError(f"ELF type {kind} for machine {machine}")
    (sections_at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [_section(code, sections_at + size * i) for i in range(count)]
    symbols: list[Symbol] = []
    relocations: list[Relocation] = []
    for section in sections:
        if section.kind == _SYMBOLS:
            symbols += _symbols(section, sections)
        elif section.kind == _RELOCATIONS:
            for offset, info, addend in struct.iter_unpack("<QQq", section.data):
                relocations.append(
                    Relocation(section.info, offset, info & 0xFFFFFFFF, info >> 32, addend)
                )
    return ObjectFile(MACHINES[machine], sections, symbols, relocations)


def _section(code: bytes, at: int) -> Section:
    kind, flags, offset, num_bytes, link, info, align = struct.unpack_from("<4xIQ8xQQIIQ", code, at)
    data = b"" if kind == _NO_BITS else code[offset : offset + num_bytes]
    if kind not in (0, _NO_BITS) and len(data) != num_bytes:
        raise ValueError(f"{num_bytes} bytes at {offset} of {len(code)}")
    return Section(kind, flags, offset, num_bytes, link, info, align, data)


def _symbols(section: Section, sections: list[Section]) -> list[Symbol]:
    names = sections[section.link].data
    found = []
    for name, number, value in struct.iter_unpack("<IxxHQ8x", section.data):
        text = names[name : names.index(b"\0", name)].decode()
        found.append(Symbol(text, number, value))
    return found
