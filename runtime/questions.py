"""Multiple-choice questions of a JSONL file, as ARC, HellaSwag, MMLU and Winogrande have them.

A line is an object with a question, its choices and the right one:

* question (shown as "Question: ...\\nAnswer:"), or prompt, query, ctx (as they are);
* choices, endings or options: a list of texts, or ARC's {"text": [...], "label": [...]};
* answer, answerKey, label or gold: a choice's label or text, its letter, or its number from 0.

Winogrande's lines have a sentence with one _, option1, option2 and answer "1" or "2": there each
option is put into the blank, and what follows the blank is scored, as lm-evaluation-harness does.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError

_PROMPTS = ("question", "prompt", "query", "ctx", "sentence")
_CHOICES = ("choices", "endings", "options")
_ANSWERS = ("answer", "answerKey", "label", "gold")
MAX_CHOICES = 64
MIN_CHOICES = 2


@dataclass(frozen=True)
class Question:
    """One line of the file.

    Attributes:
        line: its number, from 1.
        contexts: what stands before each choice, all the same but for Winogrande's.
        continuations: what is scored of each, without the space that joins them.
        answer: which is right.
        asked: the question as the user's message of a chat; None where there is none.
    """

    line: int
    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    answer: int
    asked: str | None


def read_questions(lines: Sequence[str], name: str) -> list[Question]:
    """Those of a file's lines; empty ones are none.

    RequestError: the first line that is wrong, by number, and what is wrong; or there is none.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(parse(json.loads(line), number))
                "".join((*found[-1].contexts, *found[-1].continuations)).encode()
            except UnicodeEncodeError as error:  # JSON's escapes can say half a character
                half = ascii(error.object[error.start])
                raise RequestError(f"{name}, line {number}: {half} is no character") from None
            except (ValueError, RecursionError) as error:
                what = str(error)
                if isinstance(error, (json.JSONDecodeError, RecursionError)):
                    what = (
                        f"not JSON: {what}; each line must be a whole object, with no list around"
                    )
                raise RequestError(f"{name}, line {number}: {what}") from None
    if not found:
        raise RequestError(
            f'{name}: no questions: write one object a line, such as {{"question": "...", '
            '"choices": ["...", "..."], "answer": 0}'
        )
    return found


def parse(row: Any, line: int) -> Question:
    """A row; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError('not an object such as {"question": ..., "choices": [...], "answer": 0}')
    if "option1" in row and "option2" in row:
        return _blank(row, line)
    key = _first(row, _PROMPTS, "a question")
    asked = row[key]
    if isinstance(asked, dict) and "stem" in asked:  # ARC as its authors published it
        row = {**row, "choices": asked.get("choices")}
        asked = asked["stem"]
    if not isinstance(asked, str) or not asked.strip():
        raise ValueError(f"{key}: {_shown(asked)} is no text")
    choices, labels = _choices(row)
    if key == "ctx":  # HellaSwag
        asked, choices = _wiki(_activity(row, asked)), [_wiki(choice) for choice in choices]
    context = f"Question: {asked.strip()}\nAnswer:" if key == "question" else asked.rstrip()
    answer = _answer(row, choices, labels)
    return Question(line, (context,) * len(choices), tuple(choices), answer, asked.strip())


def _blank(row: dict[str, Any], line: int) -> Question:
    sentence = row.get("sentence")
    if not isinstance(sentence, str) or sentence.count("_") != 1:
        raise ValueError(f"sentence: {_shown(sentence)} is no text with one _ for the blank")
    options = [row["option1"], row["option2"]]
    if not all(isinstance(option, str) and option for option in options):
        raise ValueError(f"option1, option2: {_shown(options)} are no texts")
    before, after = sentence.split("_")
    if not after.strip():
        raise ValueError("sentence: nothing follows the blank, which would be scored")
    answer = str(row.get("answer"))
    if answer not in ("1", "2"):
        raise ValueError(f"answer: {_shown(row.get('answer'))} is neither 1 nor 2")
    contexts = tuple(before + option for option in options)
    return Question(line, contexts, (after.strip(),) * 2, int(answer) - 1, None)


def _choices(row: dict[str, Any]) -> tuple[list[str], list[str] | None]:
    """The texts, and their labels if they have some."""
    key = _first(row, _CHOICES, "choices")
    value, labels = row[key], None
    if isinstance(value, dict):
        value, labels = value.get("text"), value.get("label")
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        value, labels = ([v.get(name) for v in value] for name in ("text", "label"))
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError(f"{key}: {_shown(value)} is no list of texts")
    if not MIN_CHOICES <= len(value) <= MAX_CHOICES:
        raise ValueError(f"{key}: {len(value)}, expected {MIN_CHOICES} to {MAX_CHOICES}")
    if labels is None:
        return value, None
    if not isinstance(labels, list) or len(labels) != len(value):
        raise ValueError(f"{key}: {_shown(labels)} is no label for each of {len(value)} choices")
    return value, [str(label) for label in labels]


def _answer(row: dict[str, Any], choices: list[str], labels: list[str] | None) -> int:
    """The right one's number: by label, text, letter or number, whichever fits first."""
    key = _first(row, _ANSWERS, "the answer")
    value, count = row[key], len(choices)
    if isinstance(value, str):
        for names in (labels or [], choices, [chr(ord("A") + i) for i in range(min(count, 26))]):
            if names.count(value.strip()) == 1:
                return names.index(value.strip())
        number = int(value) if re.fullmatch(r"\d{1,3}", value.strip()) else -1
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if 0 <= number < count:
        return number
    last = chr(ord("A") + min(count, 26) - 1)
    raise ValueError(
        f"{key}: {_shown(value)} is none of the choices, no letter from A to {last} and no number "
        f"from 0 to {count - 1}"
    )


def _activity(row: dict[str, Any], ctx: str) -> str:
    """HellaSwag's context as lm-evaluation-harness puts it together."""
    first, second = row.get("ctx_a"), row.get("ctx_b")
    if isinstance(first, str) and isinstance(second, str):
        ctx = f"{first} {second.capitalize()}"
    label = row.get("activity_label")
    return f"{label}: {ctx}" if isinstance(label, str) and label else ctx


def _wiki(text: str) -> str:
    """Without WikiHow's marks, as there."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip() or text


def _first(row: dict[str, Any], names: Sequence[str], what: str) -> str:
    for name in names:
        if row.get(name) is not None:
            return name
    raise ValueError(f"{what} is missing: one of {', '.join(names)}")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
