"""Makes `import llamba` mean this checkout, installed or not, whatever its folder is called."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def use_checkout() -> None:
    """Through a link of the package's name: the checkout's root is the package."""
    folder = Path(tempfile.mkdtemp(prefix="llamba-"))
    (folder / "llamba").symlink_to(ROOT, target_is_directory=True)
    sys.path.insert(0, str(folder))
