"""What `llamba show` says of a LoRA adapter."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.gguf import GGUFFile


def adapter_facts(gguf: "GGUFFile") -> dict[str, Any] | None:
    """Its kind, alpha, ranks, and which tensors it changes, as values for JSON; None of a model."""
    metadata = gguf.metadata
    if metadata.get("general.type") != "adapter":
        return None
    ranks, targets = set(), []
    for name, info in gguf.tensors.items():
        target, _, suffix = name.rpartition(".")
        if suffix == "lora_b" and info.shape:
            targets.append(target)
            ranks.add(int(info.shape[-1]))
    return {
        "type": metadata.get("adapter.type"),
        "alpha": metadata.get("adapter.lora.alpha"),
        "ranks": sorted(ranks),
        "base_model": metadata.get("general.base_model.0.name"),
        "tensors": targets,
    }


def adapter_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The same as lines for people: kinds of tensors instead of each."""
    kinds = sorted({t.removesuffix(".weight").rpartition(".")[2] for t in facts["tensors"]})
    alpha = facts["alpha"]
    ranks = ", ".join(map(str, facts["ranks"])) or "-"
    return [
        ("kind", f"{facts['type'] or '-'} adapter: use it with its model, --lora FILE[:SCALE]"),
        ("base model", facts["base_model"] or "-"),
        ("rank", ranks if alpha is None else f"{ranks}, alpha {alpha:g}"),
        ("changes", f"{len(facts['tensors'])} matrices: {', '.join(kinds) or '-'}"),
    ]
