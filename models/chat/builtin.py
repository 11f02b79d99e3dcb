"""Templates to be chosen by name, for models whose file has none. Never taken unasked."""

import json

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set prefix = messages[0]['content'] + '\\n\\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set prefix = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}"
    "{{ message['content'] | trim }}{{ '<end_of_turn>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'] | trim }}"
    "{{ ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)

_END = "\0"  # stands for the model's end-of-sequence token below


def _turns(
    system: tuple[str, str] | None,
    user: tuple[str, str],
    assistant: tuple[str, str],
    begin: str,
    *,
    trim: bool = False,
) -> str:
    """A template of turns that each stand between two texts.

    system None: what it says begins the first turn of the user's. begin: opens the answer.
    """

    def turn(around: tuple[str, str], before: str = "") -> str:
        return f"{{{{ {_word(around[0])} + {before}text + {_word(around[1])} }}}}"

    told = "(prefix if loop.first else '') + "
    return (
        "{% set prefix = '' %}{% set rest = messages %}"
        + (
            "{% if messages[0]['role'] == 'system' %}"
            "{% set prefix = messages[0]['content'] + '\\n\\n' %}{% set rest = messages[1:] %}"
            "{% endif %}"
            if system is None
            else ""
        )
        + "{% for message in rest %}{% set text = message['content']"
        + (" | trim" if trim else "")
        + " %}{% if message['role'] == 'user' %}"
        + turn(user, told if system is None else "")
        + "{% elif message['role'] == 'assistant' %}"
        + turn(assistant)
        + "{% elif message['role'] == 'system' %}"
        + (turn(user if system is None else system))
        + "{% else %}{{ raise_exception('this template knows the roles system, user and "
        "assistant') }}{% endif %}{% endfor %}"
        + f"{{% if add_generation_prompt %}}{{{{ {_word(begin)} }}}}{{% endif %}}"
    )


def _word(text: str) -> str:
    """A text as Jinja's code."""
    parts = [json.dumps(part, ensure_ascii=False) for part in text.split(_END)]
    return " + eos_token + ".join(parts)


def _named(open_: str, close: str, end: str) -> str:
    """Turns that begin with the role's name between two texts."""
    system, user, assistant = (
        (f"{open_}{role}{close}", end) for role in ("system", "user", "assistant")
    )
    return _turns(system, user, assistant, assistant[0], trim="header" in open_)


_COHERE = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
_COHERE_END = "<|END_OF_TURN_TOKEN|>"
_ALPACA_BEGIN = "### Response:\n"

# Their prompts are llama.cpp's for these names, but for the first BOS token and for the white space
# at the ends of texts.
BUILTIN_TEMPLATES: dict[str, str] = {
    "alpaca": _turns(
        ("", "\n\n"), ("### Instruction:\n", "\n\n"), (_ALPACA_BEGIN, _END + "\n\n"), _ALPACA_BEGIN
    ),
    "chatml": _CHATML,
    "command-r": _turns(
        (_COHERE.format("SYSTEM"), _COHERE_END),
        (_COHERE.format("USER"), _COHERE_END),
        (_COHERE.format("CHATBOT"), _COHERE_END),
        _COHERE.format("CHATBOT"),
        trim=True,
    ),
    "deepseek": _turns(
        ("", ""),
        ("### Instruction:\n", "\n"),
        ("### Response:\n", "\n<|EOT|>\n"),
        "### Response:\n",
    ),
    "deepseek3": _turns(
        ("", "\n\n"),
        ("<｜User｜>", ""),
        ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        "<｜Assistant｜>",
    ),
    "exaone4": _turns(
        ("[|system|]", "[|endofturn|]\n"),
        ("[|user|]", "\n"),
        ("[|assistant|]", "[|endofturn|]\n"),
        "[|assistant|]",
        trim=True,
    ),
    "falcon3": _named("<|", "|>\n", "\n"),
    "gemma": _GEMMA,
    "granite": _named("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n"),
    "llama2": _LLAMA2,
    "llama3": _named("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    "llama4": _named("<|header_start|>", "<|header_end|>\n\n", "<|eot|>"),
    "mistral-v3": _turns(None, ("[INST] ", "[/INST]"), (" ", _END), "", trim=True),
    "mistral-v7": _turns(
        ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"), ("[INST] ", "[/INST]"), (" ", _END), "", trim=True
    ),
    "mistral-v7-tekken": _turns(
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), ("[INST]", "[/INST]"), ("", _END), "", trim=True
    ),
    "openchat": _turns(
        ("", "<|end_of_turn|>"),
        ("GPT4 Correct User: ", "<|end_of_turn|>"),
        ("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        "GPT4 Correct Assistant:",
        trim=True,
    ),
    "phi3": _named("<|", "|>\n", "<|end|>\n"),
    "phi4": _named("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "vicuna": _turns(
        ("", "\n\n"), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:", trim=True
    ),
    "zephyr": _named("<|", "|>\n", _END + "\n"),
}
