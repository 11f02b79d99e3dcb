"""ChatTemplate: a conversation to the prompt text, or to its token ids."""

import datetime
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ...errors import ChatTemplateError
from ..tokenizer import Tokenizer
from ..tokenizer.vocab import Container
from .budget import MAX_CPU_S, Budget, spending
from .builtin import BUILTIN_TEMPLATES
from .guard import Guarded, guards_of
from .messages import Abilities, check_messages, find_abilities, normalize
from .reasoning import says_of

_MAX_SOURCE_LEN = 1 << 20
_PROBE_CPU_S = 0.1


class ChatTemplate:
    """A model's chat template, compiled.

    source: the Jinja text. tokenizer: gives the special tokens, and `encode` its ids. clock: what
    strftime_now asks for the time. Raises ChatTemplateError for a template that does not compile;
    nothing is ever put in its place (PAINS P29). Thread-safe.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        import jinja2

        from .sandbox import BoundedEnvironment

        if len(source) > _MAX_SOURCE_LEN:
            raise ChatTemplateError(
                f"the chat template has {len(source)} characters; {_MAX_SOURCE_LEN} is the limit"
            )
        self.source = source
        self.tokenizer = tokenizer
        self._clock = clock
        self._says = says_of(source)
        self._jinja_error = jinja2.TemplateError
        try:
            with spending(Budget()):
                self._template = BoundedEnvironment().from_string(source)
        except ChatTemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is invalid: {error.message} (line {error.lineno}); "
                "pass another one with chat_template=..."
            ) from error
        except Exception as error:  # a hostile template can make the compiler fail in any way
            raise ChatTemplateError(
                f"the chat template can't be compiled: {type(error).__name__}: {error}"
            ) from error
        self._lock = threading.Lock()
        self._abilities: Abilities | None = None
        self._guarded: Guarded | None = None

    @classmethod
    def from_gguf(cls, gguf: Container, tokenizer: Tokenizer) -> "Self | None":
        """The file's own template; None if it has none. ChatTemplateError: it is invalid."""
        source = gguf.metadata.get("tokenizer.chat_template")
        if source is None:
            return None
        if not isinstance(source, str):
            raise ChatTemplateError(
                "the file's chat template (tokenizer.chat_template) is not a valid text; "
                "pass another one with chat_template=..."
            )
        return cls(source, tokenizer)

    @classmethod
    def from_name(cls, name: str, tokenizer: Tokenizer) -> Self:
        """One of the built-in templates. ChatTemplateError: no such name."""
        if name not in BUILTIN_TEMPLATES:
            raise ChatTemplateError(
                f"no built-in chat template {name!r}; there are: {', '.join(BUILTIN_TEMPLATES)}"
            )
        return cls(BUILTIN_TEMPLATES[name], tokenizer)

    @property
    def abilities(self) -> Abilities:
        """What the template can take, found out on first use."""
        with self._lock:
            if self._abilities is None:
                self._abilities = find_abilities(
                    self.source,
                    lambda messages: self._run(
                        {"messages": messages}, add_generation_prompt=True, cpu_s=_PROBE_CPU_S
                    ),
                )
            return self._abilities

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        continue_final_message: bool | None = None,
        developer_as_system: bool = True,
        merge_roles: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt text.

        continue_final_message: the last message, the assistant's, is left open for the model to go
        on; by default whenever the last message is the assistant's, as llama.cpp's server does.
        developer_as_system: the role "developer" is called "system", unless the template knows it.
        merge_roles: neighbours of the same role become one message (for templates that insist on
        alternation). kwargs go to the template. ChatTemplateError: these messages can't be
        rendered; if the template itself says why, its text is the error's.
        """
        given, settings = self._prepare(
            messages,
            tools,
            continue_final_message,
            add_generation_prompt,
            developer_as_system,
            merge_roles,
            kwargs,
        )
        return self._run(given, **settings)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        continue_final_message: bool | None = None,
        developer_as_system: bool = True,
        merge_roles: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt's token ids; arguments as `render`.

        The template's own text may contain control tokens, text of the messages and tools never
        becomes one (PAINS P27). Exactly one BOS where the model wants one (P20).
        """
        given, settings = self._prepare(
            messages,
            tools,
            continue_final_message,
            add_generation_prompt,
            developer_as_system,
            merge_roles,
            kwargs,
        )
        with self._lock:
            if self._guarded is None:
                self._guarded = Guarded(self.tokenizer, self.source)
            guarded = self._guarded
        deadline = time.thread_time() + 2 * MAX_CPU_S + _num_chars(given) * 1e-5

        def run(tree: dict[str, Any]) -> str:
            if time.thread_time() > deadline:
                raise ChatTemplateError("the chat template needs too much time to be run safely")
            return self._run(tree, **settings)

        text, guards = guards_of(run(given), given, run, guarded)
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True, guards=guards)
        bos = self.tokenizer.bos_id
        if self.tokenizer.add_bos and bos is not None:
            start = next((i for i, token_id in enumerate(ids) if token_id != bos), len(ids))
            ids[:start] = [bos]
        return ids

    def _prepare(
        self,
        messages: Any,
        tools: Sequence[Any] | None,
        continue_final: bool | None,
        add_generation_prompt: bool,
        developer_as_system: bool,
        merge_roles: bool,
        kwargs: dict[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the tree of texts that the caller gave, what else the rendering depends on)."""
        checked = normalize(
            check_messages(messages),
            lambda: self.abilities,
            developer_as_system=developer_as_system and "developer" not in self.source,
            merge_roles=merge_roles,
        )
        ends_open = checked[-1]["role"] == "assistant" and not checked[-1].get("tool_calls")
        if continue_final and not ends_open:
            raise ChatTemplateError(
                "continue_final_message: the last message must be the assistant's, with a text"
            )
        given = {"messages": checked, "tools": None if tools is None else list(tools), **kwargs}
        if continue_final or (continue_final is None and ends_open):
            if len(checked) > 1 and checked[-2]["role"] == "assistant":
                raise ChatTemplateError(
                    "Cannot have 2 or more assistant messages at the end of the list."
                )
            last = checked.pop()["content"]
            texts = [last] if isinstance(last, str) else [part["text"] for part in last]
            given["_continued"] = {"role": "assistant", "content": "\n".join(texts)}
            add_generation_prompt = True
        return given, {"add_generation_prompt": add_generation_prompt}

    def _run(
        self, given: dict[str, Any], *, add_generation_prompt: bool, cpu_s: float = MAX_CPU_S
    ) -> str:
        """Render once, in bounds; any failure becomes a ChatTemplateError."""
        vocabulary = self.tokenizer.vocabulary
        variables: dict[str, Any] = {
            f"{name}_token": "" if token_id is None else self.tokenizer.token_text(token_id)
            for name, token_id in (
                ("bos", vocabulary.bos_id),
                ("eos", vocabulary.eos_id),
                ("unk", vocabulary.unk_id),
                ("pad", vocabulary.pad_id),
            )
        }
        variables.update(
            raise_exception=_raise,
            strftime_now=self._strftime_now,
            add_generation_prompt=add_generation_prompt,
            **{key: value for key, value in given.items() if key != "_continued"},
        )
        continued = given.get("_continued", {"content": ""})["content"]
        # What the model would write before what it says is the template's, no text of a message.
        lead = self._says if "_continued" in given else ""
        try:
            with spending(Budget(_num_chars(given), cpu_s)):
                return self._template.render(variables) + lead + continued
        except ChatTemplateError:
            raise
        except self._jinja_error as error:
            raise ChatTemplateError(f"the chat template failed: {error}") from error
        except Exception as error:  # whatever a template makes Python raise is its own fault
            raise ChatTemplateError(
                f"the chat template failed: {type(error).__name__}: {error}"
            ) from error

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > 256:
            raise ChatTemplateError("strftime_now: the format has more than 256 characters")
        return self._clock().strftime(pattern)


def _raise(message: Any) -> None:
    """The template's `raise_exception`: its text is the error's (PAINS P25)."""
    raise ChatTemplateError(str(message)[:4096])


def _num_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_num_chars(k) + _num_chars(v) for k, v in value.items())
    return sum(map(_num_chars, value)) if isinstance(value, list | tuple) else 0
