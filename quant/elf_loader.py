"""Kernels' object code into memory, on Linux: what a linker does, for the little that they need.

All sections of all objects lie in one block of memory, so code reaches its constants and stubs by
distance, whatever else the process has mapped (MCJIT's memory managers either spread sections, or
fall short by their alignment and abort). LLVM isn't needed at all. The block is written first and
executable then, never both.
"""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import lru_cache

from ..errors import KernelError
from .elf import ABSOLUTE, UNDEFINED, ObjectFile, Relocation, read_object

# What object code may call outside itself: LLVM's own library calls, the yield in the barrier, and
# what parks a thread.
ALLOWED = frozenset({"memset", "memcpy", "memmove", "sched_yield", "syscall", "usleep"})

_STUB = 16  # bytes: a jump to the address in its second half
_STUB_CODE = {
    "x86_64": bytes.fromhex("ff2502000000") + b"\x90\x90",  # jmp [rip + 2]
    "aarch64": bytes.fromhex("5000005800021fd6"),  # ldr x16, #8; br x16
}


def link(codes: Sequence[bytes], exported: Sequence[str]) -> dict[str, int]:
    """Load object files; the addresses of the symbols that they must export.

    Raises:
        KernelError: an object file is damaged or asks for what is not known here, or the system
            gives no memory, or forbids executable memory.
    """
    objects = [read_object(code) for code in codes]
    if len({one.arch for one in objects}) != 1:
        raise KernelError("the object code of kernels is for different architectures")
    try:
        return _link(objects, exported)
    except (KeyError, IndexError) as error:  # of a symbol, or of a section that is not loaded
        raise KernelError(f"the object code of a kernel is damaged: no {error} in it") from error


def _link(objects: Sequence[ObjectFile], exported: Sequence[str]) -> dict[str, int]:
    places, size = _plan(objects)
    wanted = sorted(set().union(*(o.undefined for o in objects)))
    stubs = {name: size + _STUB * i for i, name in enumerate(wanted)}
    block = _memory(max(1, size + _STUB * len(stubs)))
    base = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for name, at in stubs.items():
        block[at : at + _STUB] = _STUB_CODE[objects[0].arch] + _outside(name).to_bytes(8, "little")
    found = {}
    for number, one in enumerate(objects):
        for i, section in enumerate(one.sections):
            if section.is_loaded and section.data:
                at = places[number, i]
                block[at : at + len(section.data)] = section.data

        def address(symbol: int, number: int = number, one: ObjectFile = one) -> int:
            name, section, value = one.symbols[symbol]
            if section == UNDEFINED:
                return base + stubs[name]
            return value if section == ABSOLUTE else base + places[number, section] + value

        for relocation in one.relocations:
            if one.sections[relocation.section].is_loaded:
                start = places[number, relocation.section]
                length = one.sections[relocation.section].num_bytes
                wide = relocation.kind in _EIGHT_BYTES[one.arch]
                if relocation.offset + (8 if wide else 4) > length:
                    raise KernelError("the object code of a kernel is damaged: a place outside it")
                undefined = one.symbols[relocation.symbol].section == UNDEFINED
                _apply(
                    one.arch, block, base, start + relocation.offset, relocation, address, undefined
                )
        for i, symbol in enumerate(one.symbols):
            if symbol.name in exported and symbol.section != UNDEFINED:
                found[symbol.name] = address(i)
    _make_executable(base, len(block))
    # Never unmapped, not even when the interpreter ends and its modules go: addresses of the code
    # are all over the process, and threads may be in it until the last moment.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
    if missing := set(exported) - found.keys():
        raise KernelError(f"the object code lacks {', '.join(sorted(missing))}")
    return found


def _memory(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(
            -1,
            size,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    except (OSError, OverflowError) as error:
        raise KernelError(
            f"the system gives no {size:,} bytes of memory for compiled kernels ({error})"
        ) from error


def _plan(objects: Sequence[ObjectFile]) -> tuple[dict[tuple[int, int], int], int]:
    """Where each section (object, number) lies in the block, and the bytes of all of them."""
    places, size = {}, 0
    for number, one in enumerate(objects):
        for i, section in enumerate(one.sections):
            if section.is_loaded:
                size = _up(size, min(max(1, section.align), mmap.PAGESIZE))
                places[number, i] = size
                size += section.num_bytes
    return places, _up(size, _STUB)


def _up(size: int, align: int) -> int:
    return -(-size // align) * align


@lru_cache
def _outside(name: str) -> int:
    """The address of a function of the C library."""
    if name not in ALLOWED:
        raise KernelError(f"the object code of a kernel calls {name}")
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _make_executable(base: int, size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    protect = library.mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # On ARM64, this makes the kernel sync the instruction cache with what was written.
    if protect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise KernelError(
            "the system forbids executable memory, which compiled kernels need "
            f"(mprotect: error {ctypes.get_errno()}; SELinux's execmem, systemd's "
            "MemoryDenyWriteExecute=)"
        )


def _apply(
    arch: str,
    block: mmap.mmap,
    base: int,
    at: int,
    relocation: Relocation,
    address: Callable[[int], int],
    undefined: bool,
) -> None:
    """Write an address into the block where the code asks for it (psABI's formulas)."""
    target = address(relocation.symbol) + relocation.addend
    apply = _x86 if arch == "x86_64" else _arm
    apply(block, at, relocation, target, base + at, undefined)


def _put(block: mmap.mmap, at: int, value: int, size: int) -> None:
    limit = 1 << (8 * size - 1)
    if size < 8 and not -limit <= value < limit:
        raise KernelError("kernels lie too far apart in memory")
    block[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


# Relocations by number: absolute addresses, distances, distances to where an address lies.
_X86_ABSOLUTE = 1
_X86_DISTANCES = {2: 4, 4: 4, 24: 8}  # PC32, PLT32, PC64
_X86_TABLE = (9, 41, 42)  # GOTPCREL and its two relaxable forms
_EIGHT_BYTES = {"x86_64": (_X86_ABSOLUTE, 24), "aarch64": (257, 260)}  # the others have four


def _x86(
    block: mmap.mmap, at: int, relocation: Relocation, target: int, place: int, undefined: bool
) -> None:
    kind = relocation.kind
    if kind == _X86_ABSOLUTE:
        # A function outside is called by its own address, which the stub holds.
        value = _quad(block, at, target, place) if undefined else target
        _put(block, at, value, 8)
    elif kind in _X86_DISTANCES:
        _put(block, at, target - place, _X86_DISTANCES[kind])
    elif kind in _X86_TABLE and undefined:
        _put(block, at, target + 8 - place, 4)
    else:
        raise KernelError(f"the object code of a kernel has an unknown relocation, {kind}")


def _quad(block: mmap.mmap, at: int, stub: int, place: int) -> int:
    """The address that a stub jumps to."""
    where = stub - place + at + 8
    return int.from_bytes(block[where : where + 8], "little")


_ARM_DISTANCES = {260: 8, 261: 4}  # PREL64, PREL32
_ARM_LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD, LDST8 to LDST128
_ARM_CALLS = (282, 283)  # JUMP26, CALL26
_ARM_TABLE = (311, 312)  # ADR_GOT_PAGE, LD64_GOT_LO12_NC: the stubs are the table


def _arm(
    block: mmap.mmap, at: int, relocation: Relocation, target: int, place: int, undefined: bool
) -> None:
    kind = relocation.kind
    word = int.from_bytes(block[at : at + 4], "little")
    if kind in _ARM_TABLE and not undefined:
        raise KernelError(f"the object code of a kernel has an unknown relocation, {kind}")
    if kind == 257:  # ABS64
        _put(block, at, _quad(block, at, target, place) if undefined else target, 8)
    elif kind in _ARM_DISTANCES:
        _put(block, at, target - place, _ARM_DISTANCES[kind])
    elif kind in (275, 311):  # ADR_PREL_PG_HI21, ADR_GOT_PAGE: pages from here, 21 bits
        pages = ((target + (8 if kind == 311 else 0)) >> 12) - (place >> 12)
        if not -(1 << 20) <= pages < 1 << 20:
            raise KernelError("kernels lie too far apart in memory")
        word = word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        _put_word(block, at, word)
    elif kind in _ARM_LOW_BITS:
        low = (target & 0xFFF) >> _ARM_LOW_BITS[kind]
        _put_word(block, at, word & ~(0xFFF << 10) | low << 10)
    elif kind == 312:  # LD64_GOT_LO12_NC
        _put_word(block, at, word & ~(0xFFF << 10) | ((target + 8 & 0xFFF) >> 3) << 10)
    elif kind in _ARM_CALLS:
        words = (target - place) >> 2
        if not -(1 << 25) <= words < 1 << 25:
            raise KernelError("kernels lie too far apart in memory")
        _put_word(block, at, word & ~0x3FFFFFF | words & 0x3FFFFFF)
    else:
        raise KernelError(f"the object code of a kernel has an unknown relocation, {kind}")


def _put_word(block: mmap.mmap, at: int, word: int) -> None:
    block[at : at + 4] = (word & 0xFFFFFFFF).to_bytes(4, "little")
