"""From Anthropic's messages, tools and settings to a ChatTask."""

from collections.abc import Mapping, Sequence
from typing import Any

from ....models.chat import Tool, ToolChoice, check_tools, read_tools
from ..errors import bad_request
from ..settings import ServerSettings
from ..tasks import ChatTask
from .schemas import CountBody

# Claude Code's first system block is meant for Anthropic's accounting. It differs from request to
# request, so that no prompt would share a prefix with the one before.
_BILLING = "x-anthropic-billing-header:"
_EFFORTS = {"xhigh": "high", "max": "high"}  # beyond what open models were trained with


def chat_task(body: CountBody, settings: ServerSettings) -> ChatTask:
    """The task; ApiError names the field that can't be honoured.

    Who doesn't ask for thinking gets none, as far as the model can be told: such clients read
    content[0].text.
    """
    tools = _tools(body.tools or [])
    choice, parallel = _choice(body, tools)
    template_kwargs: dict[str, Any] = {"merge_roles": True}  # the API's own rule for neighbours
    if body.output_config and (effort := body.output_config.effort):
        template_kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    kind = "disabled" if body.thinking is None else body.thinking.type
    return ChatTask(
        **body.common(),
        messages=[*_system(body.system), *_messages(body.messages)],
        sampling=body.sampling(settings),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        thinking={"disabled": False, "enabled": True}.get(kind),  # None: the template decides
        template_kwargs=template_kwargs,
    )


def _tools(given: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    for i, tool in enumerate(given):
        if (kind := tool.get("type") or "custom") != "custom":
            raise bad_request(
                f"tools[{i}]: tools of the type {kind!r:.60} are Anthropic's own and not offered "
                "here; only tools with an input_schema are",
                param=f"tools[{i}].type",
            )
        if not isinstance(tool.get("input_schema"), Mapping):
            where = f"tools[{i}].input_schema"
            raise bad_request(f"{where}: must be a JSON schema (an object)", param=where)
    return tuple(read_tools([{**tool, "type": "custom"} for tool in given]))


def _choice(body: CountBody, tools: Sequence[Tool]) -> tuple[ToolChoice, bool]:
    """(the choice, whether several calls may be made)."""
    given = body.tool_choice
    if given is None:
        return ToolChoice("auto"), True
    if given.type == "tool" and not given.name:
        raise bad_request("tool_choice.name: which tool?", param="tool_choice.name")
    kinds = {"any": "required", "tool": "named"}
    name = given.name if given.type == "tool" else None
    choice = ToolChoice(kinds.get(given.type, given.type), name)  # type: ignore[arg-type]
    check_tools(tools, choice)
    # Small models that are made to call one tool would go on calling it.
    return choice, given.type != "tool" and not given.disable_parallel_tool_use


def _system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if system is None:
        return []
    texts = [system]
    if not isinstance(system, str):
        texts = [_text(block, f"system[{i}]") for i, block in enumerate(system)]
        texts = [text for text in texts if not text.startswith(_BILLING)]
    text = "\n\n".join(text for text in texts if text)
    return [{"role": "system", "content": text}] if text else []


def _messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """In OpenAI's form, where the results of tools are messages of their own."""
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of the tools, by the calls' ids
    for i, message in enumerate(messages):
        content = message.content
        if content is None or isinstance(content, str):
            out.append({"role": message.role, "content": content or ""})
        elif message.role == "assistant":
            out.append(_assistant(content, f"messages[{i}]", names))
        else:
            out.extend(_user(content, message.role, f"messages[{i}]", names))
    return out


def _assistant(
    blocks: Sequence[Mapping[str, Any]], where: str, names: dict[str, str]
) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for j, block in enumerate(blocks):
        at = f"{where}.content[{j}]"
        match block.get("type"):
            case "text":
                texts.append(_text(block, at))
            case "thinking":
                thoughts.append(_string(block, "thinking", at))
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                call_id, name = _string(block, "id", at), _string(block, "name", at)
                arguments = block.get("input")
                if not isinstance(arguments, Mapping):
                    raise bad_request(f"{at}.input: must be an object", param=f"{at}.input")
                names[call_id] = name
                function = {"name": name, "arguments": dict(arguments)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case kind:
                raise _unsupported(kind, at)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(
    blocks: Sequence[Mapping[str, Any]], role: str, where: str, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for j, block in enumerate(blocks):
        at = f"{where}.content[{j}]"
        match block.get("type"):
            case "text":
                text = _text(block, at)
                if out and out[-1]["role"] == role:
                    out[-1]["content"] += "\n" + text
                else:
                    out.append({"role": role, "content": text})
            case "tool_result" if role == "user":
                out.append(_tool_result(block, at, names))
            case kind:
                raise _unsupported(kind, at)
    return out or [{"role": role, "content": ""}]


def _tool_result(block: Mapping[str, Any], at: str, names: Mapping[str, str]) -> dict[str, Any]:
    call_id, content = _string(block, "tool_use_id", at), block.get("content")
    if isinstance(content, list):
        texts = []
        for k, part in enumerate(content):
            place = f"{at}.content[{k}]"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text":
                raise _unsupported(kind, place)
            texts.append(_text(part, place))
        content = "\n".join(texts)
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"{at}.content: must be a text or blocks", param=f"{at}.content")
    text = content or ""
    if block.get("is_error") and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error"
    message = {"role": "tool", "tool_call_id": call_id, "content": text}
    return message | ({"name": names[call_id]} if call_id in names else {})


def _text(block: Mapping[str, Any], at: str) -> str:
    if block.get("type", "text") != "text":
        raise _unsupported(block.get("type"), at)
    return _string(block, "text", at)


def _string(block: Mapping[str, Any], key: str, at: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise bad_request(f"{at}.{key}: must be a text", param=f"{at}.{key}")
    return value


def _unsupported(kind: Any, at: str) -> Exception:
    if not isinstance(kind, str):
        return bad_request(f"{at}.type: must say what the block is", param=f"{at}.type")
    return bad_request(
        f"{at}: blocks of the type {kind!r:.60} are not supported: the models here read text only",
        param=at,
    )
