"""Log-probabilities in the form of the responses API."""

from typing import TYPE_CHECKING, Any

from ..answers import Delta

if TYPE_CHECKING:
    from ....models.tokenizer import Tokenizer
    from ....runtime.outputs import Logprob

_LOWEST = -9999.0  # JSON has no infinity; OpenAI's value for a token that can't be


def show_logprobs(delta: Delta, num_top: int, tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    """One entry a new token that stands for text, with the `num_top` most likely tokens there."""
    entries = []
    for token_id, table in zip(delta.token_ids, delta.logprobs or (), strict=False):
        if not tokenizer.token_bytes(token_id):
            continue  # a control token, such as the one that ended the answer
        top = [_show(each, tokenizer) for each in table.values() if each.rank <= num_top]
        entries.append({**_show(table[token_id], tokenizer), "top_logprobs": top})
    return entries


def _show(entry: "Logprob", tokenizer: "Tokenizer") -> dict[str, Any]:
    return {
        "token": entry.decoded_token,
        "bytes": list(tokenizer.token_bytes(entry.token_id)),
        "logprob": max(entry.logprob, _LOWEST),
    }
