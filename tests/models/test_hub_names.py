"""What names of the hub mean, and which files of a repository they choose."""

import pytest

from llamba.errors import DownloadError, ModelNotFoundError
from llamba.models.hub_names import Reference, choose, parse


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:o/r", Reference("o/r")),
        ("hf:o/r:q8_0", Reference("o/r", "q8_0")),
        ("hf:o/r/sub/m.gguf", Reference("o/r", "", "sub/m.gguf")),
        ("hf.co/o/r:Q4_K_M", Reference("o/r", "Q4_K_M")),
        ("https://huggingface.co/o/r", Reference("o/r")),
        # P15: the address of the page stands for the file
        ("https://huggingface.co/o/r/blob/main/m.gguf", Reference("o/r", "", "m.gguf")),
        (
            "https://huggingface.co/o/r/resolve/v2/m.gguf?download=true",
            Reference("o/r", "", "m.gguf", "v2"),
        ),
        ("https://huggingface.co/o/r/tree/main", Reference("o/r")),
        ("smollm2", None),
        ("o/r", None),
        ("./hf/m.gguf", None),
    ],
)
def test_parse(name: str, expected: Reference | None) -> None:
    assert parse(name) == expected


@pytest.mark.parametrize(
    "name", ["hf:", "hf:o", "hf:o/r:", "hf:o/r/x.bin", "ftp://x", "http://x/y"]
)
def test_parse_refuses(name: str) -> None:
    if name.startswith("ftp"):
        assert parse(name) is None
    else:
        with pytest.raises(ModelNotFoundError):
            parse(name)


FILES = [
    "M-BF16.gguf",
    "M-IQ4_XS.gguf",
    "M-Q4_K_M.gguf",
    "M-Q4_K_S.gguf",
    "M-UD-Q4_K_XL.gguf",
    "Q8_0/M-Q8_0-00001-of-00002.gguf",
    "Q8_0/M-Q8_0-00002-of-00002.gguf",
    "mmproj-F16.gguf",
    "imatrix_unsloth.gguf",
]


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("", ["M-Q4_K_M.gguf"]),
        ("q4_k_m", ["M-Q4_K_M.gguf"]),
        ("Q4_K_S", ["M-Q4_K_S.gguf"]),
        ("iq4_xs", ["M-IQ4_XS.gguf"]),
        ("Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("ud-q4_k_xl", ["M-UD-Q4_K_XL.gguf"]),
        ("bf16", ["M-BF16.gguf"]),
        ("Q8_0", ["Q8_0/M-Q8_0-00001-of-00002.gguf", "Q8_0/M-Q8_0-00002-of-00002.gguf"]),
    ],
)
def test_choice(quant: str, expected: list[str]) -> None:
    assert choose(FILES, Reference("o/r", quant)) == expected


def test_choice_without_the_preferred_ones() -> None:
    reference = Reference("o/r")
    assert choose(["a-Q8_0.gguf", "a-F16.gguf"], reference) == ["a-Q8_0.gguf"]
    assert choose(["only.gguf", "README.md"], reference) == ["only.gguf"]
    with pytest.raises(ModelNotFoundError, match="choose one of: Q2_K, Q3_K_M"):
        choose(["a-Q2_K.gguf", "a-Q3_K_M.gguf"], reference)
    with pytest.raises(ModelNotFoundError, match="choose one of: a-Q4_K_M.gguf, b-Q4_K_M.gguf"):
        choose(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], reference)
    with pytest.raises(ModelNotFoundError, match="no such model.*Q4_K_M"):
        choose(FILES, Reference("o/r", "Q4_K"))
    with pytest.raises(ModelNotFoundError, match="no .gguf file"):
        choose(["README.md", "mmproj-F16.gguf"], reference)
    with pytest.raises(DownloadError, match="lacks the shard a-00002-of-00002.gguf"):
        choose(["a-00001-of-00002.gguf"], reference)
