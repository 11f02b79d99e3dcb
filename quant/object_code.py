"""What an ELF object file asks for: read without LLVM, which would abort on a name it can't find."""

import struct

_SYMBOLS = 2  # the section type SHT_SYMTAB


def undefined_symbols(code: bytes) -> set[str]:
    """Names that a 64-bit little-endian ELF object leaves to others; none of another format."""
    if code[:6] != b"\x7fELF\x02\x01":
        return set()
    (sections_at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [
        # type, offset, bytes, the linked section (here: that of the names)
        struct.unpack_from("<4xI16xQQI", code, sections_at + size * i)
        for i in range(count)
    ]
    found = set()
    for kind, offset, num_bytes, link in sections:
        if kind != _SYMBOLS:
            continue
        names_at = sections[link][1]
        for at in range(offset, offset + num_bytes, 24):
            name, section = struct.unpack_from("<IxxH", code, at)
            if name and section == 0:
                start = names_at + name
                found.add(code[start : code.index(b"\0", start)].decode())
    return found
