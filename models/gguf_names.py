"""The names of the files of one model: NAME.gguf, or NAME-00001-of-00003.gguf and its like."""

import re
from pathlib import Path

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_paths(path: Path) -> list[Path]:
    """All files of the split model whose shard `path` is, by its name; `[path]` for a whole one."""
    match = _SHARD_NAME.fullmatch(path.name)
    if not match or not 1 <= int(match["no"]) <= int(match["count"]):
        return [path]
    count = int(match["count"])
    return [
        path.with_name(f"{match['stem']}-{no:05d}-of-{count:05d}.gguf")
        for no in range(1, count + 1)
    ]
