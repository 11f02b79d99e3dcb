"""A conversation: its messages, and what /undo, /save and /load do to them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RequestError


@dataclass
class Conversation:
    """The system message and the turns, in the shape that chat templates take."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the model is given."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def say(self, text: str) -> None:
        """A message of the user."""
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """The model's answer, whole or as far as it came."""
        self.turns.append({"role": "assistant", "content": text})

    def undo(self) -> bool:
        """Drops the last question with its answer; False when there is none."""
        while self.turns:
            if self.turns.pop()["role"] == "user":
                return True
        return False

    def take_back_answer(self) -> bool:
        """Drops the last answer, so that the question can be answered again."""
        if not any(turn["role"] == "user" for turn in self.turns):
            return False
        while self.turns[-1]["role"] != "user":
            self.turns.pop()
        return True

    def save(self, path: Path, **more: Any) -> None:
        """Writes JSON. Raises RequestError naming the path."""
        value = {**more, "system": self.system, "messages": self.turns}
        text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"can't save to {path}: {error.strerror or error}") from error

    def load(self, path: Path) -> None:
        """Replaces this conversation. Raises RequestError when the file is not one."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RequestError(f"can't load {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise RequestError(f"{path} is not a saved conversation: {error}") from error
        turns, system = self._checked(value, path)
        self.turns, self.system = turns, system

    @staticmethod
    def _checked(value: Any, path: Path) -> tuple[list[dict[str, str]], str | None]:
        """A list of messages (as an API takes) will do as well as our own object."""
        messages = value.get("messages") if isinstance(value, dict) else value
        system = value.get("system") if isinstance(value, dict) else None
        if not isinstance(messages, list) or not isinstance(system, str | None):
            raise RequestError(f"{path} is not a saved conversation: no list of messages in it")
        turns = []
        for index, message in enumerate(messages):
            if not isinstance(message, dict):
                message = {}
            role, content = message.get("role"), message.get("content")
            if role not in ("system", "user", "assistant") or not isinstance(content, str):
                raise RequestError(
                    f"{path}: message {index} needs a role (system, user, assistant) and a content"
                )
            if role == "system":
                system = content
            else:
                turns.append({"role": role, "content": content})
        return turns, system
