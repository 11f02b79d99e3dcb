"""A model's thinking told from what it says, as answers come."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models.chat import AnswerParser, Part
    from ..runtime.llm import LLM
    from ..runtime.outputs import RequestOutput

_TAIL_TOKENS = 32  # of the prompt, in which the template may have opened the thinking


class Thoughts:
    """Splits one answer.

    Args:
        llm: has the template, which says how the model thinks.
        show: takes the thinking as it comes.
    """

    def __init__(self, llm: "LLM", show: Callable[[str], object]) -> None:
        from ..models.chat import find_reasoning_format

        source = getattr(llm.chat_template, "source", None)
        self._form = find_reasoning_format(source, llm.tokenizer) if source else None
        self._llm, self._show = llm, show
        self._parser: AnswerParser | None = None
        self.text = ""

    def push(self, output: "RequestOutput") -> str:
        """What an output adds to what the model says."""
        if self._form is None:
            return output.delta
        if self._parser is None:
            from ..models.chat import AnswerParser, is_open

            ids = output.prompt_token_ids[-_TAIL_TOKENS:]
            tail = self._llm.tokenizer.decode(ids, skip_special=False)
            opened = is_open(self._form, tail)
            self._parser = AnswerParser(reasoning=self._form, opened=opened, tools=None)
        return self._split(self._parser.push(output.delta)) if output.delta else ""

    def end(self) -> str:
        """The rest of what the model says."""
        return "" if self._parser is None else self._split(self._parser.flush(cut=True))

    def _split(self, parts: "list[Part]") -> str:
        from ..models.chat import ContentText, ReasoningText

        said = ""
        for part in parts:
            if isinstance(part, ReasoningText):
                self.text += part.text
                self._show(part.text)
            elif isinstance(part, ContentText):
                said += part.text
        return said
