"""Chat templates of model families, reduced to what matters for tokens, and a tokenizer that wears one.

Facts of the published templates in our own words: role marks, where tools and dates stand, what is trimmed, and what
is dropped from earlier turns. Prose of the originals (instructions to the model) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintain.models import HFTokenizer

BAR, BLANK = "\uff5c", "\u2581"


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family's template does.

    Attributes:
        end: the token after a reply.
        form: the format of calls.
        rewrites: the cases in which earlier text changes: ``dialogue``, ``thought``, ``tool_block``, ``tools``.
        refuses: the cases that the template refuses.
        system: ``own`` message, ``merged`` into the user's, or ``refused``.
        opens: whether the generation prompt opens a thought.
    """

    template: str
    end: str
    form: str
    rewrites: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    system: str = "own"
    opens: bool = False


CHATML_TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
CHATML_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML_TOOL = "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"

TOOL_BLOCK = (
    "{% set system = messages[0].content if messages[0].role == 'system' else DEFAULT %}"
    "{% if tools or system %}{{ '<|im_start|>system\n' + system }}"
    "{% if tools %}{{ '\n\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}{{ '\n</tools>CALL' }}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endif %}"
)


def chatml(call: str, *, default: str = "''", assistant: str = CHATML_TURN) -> str:
    """Role marks of ChatML, tools in the system message, results in a user's."""
    head = TOOL_BLOCK.replace("DEFAULT", default).replace("CALL", call)
    return (
        f"{head}{{% for m in messages %}}{{% if m.role == 'system' %}}{{% elif m.role == 'tool' %}}{CHATML_TOOL}"
        f"{{% elif m.role == 'assistant' %}}{assistant}{{% else %}}{CHATML_TURN}{{% endif %}}{{% endfor %}}"
        f"{CHATML_PROMPT}"
    )


LAST_USER = (  # the last message of a user: thoughts before it are dropped, those after it stay
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
QWEN3 = LAST_USER + chatml(
    "<tool_call>",
    assistant=(
        "{% set parts = m.content.split('</think>') %}{% if parts | length > 1 and loop.index0 < ns.last %}"
        "{{ '<|im_start|>assistant\n' + parts[-1].lstrip('\n') + '<|im_end|>\n' }}{% else %}"
        "{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    ),
)

LLAMA = (
    "{{ bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% if tools %}{{ 'Environment: ipython\n' }}{% endif %}"
    "{{ 'Today Date: ' + (date_string or '26 Jul 2024') + '\n\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}"
    "{{ '<|eot_id|>' }}{% for m in messages %}"
    "{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{% if tools and loop.first and m.role == 'user' %}{{ 'Respond with {\"name\": ..., \"parameters\": ...}.\n\n' }}"
    "{% for t in tools %}{{ t | tojson + '\n\n' }}{% endfor %}{% endif %}"
    "{{ m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

MISTRAL = (  # tools stand before the last message of a user; roles have to alternate
    "{{ bos_token }}" + LAST_USER + "{% set system = '' %}"
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% set ns.last = ns.last - 1 %}{% endif %}{% set turn = namespace(i=0) %}"
    "{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (turn.i % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set turn.i = turn.i + 1 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.index0 == ns.last %}"
    "{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + (system if loop.index0 == ns.last else '') + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]{\"content\": ' + m.content + '}[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS]' + m.tool_calls | tojson + eos_token }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)


def deepseek(*, drops: bool, opens: bool) -> str:
    """DeepSeek's own tokens; R1 drops thoughts of earlier turns and opens one in its prompt."""
    user, assistant = f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>"
    output, end = f"<{BAR}tool{BLANK}output{BLANK}begin{BAR}>", f"<{BAR}tool{BLANK}output{BLANK}end{BAR}>"
    content = "m.content.split('</think>')[-1]" if drops else "m.content"
    return (
        "{{ bos_token }}"
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if tools %}"
        f"{{{{ '## Tools' + tools | tojson + '<{BAR}tool{BLANK}calls{BLANK}begin{BAR}>' }}}}{{% endif %}}"
        f"{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ '{user}' + m.content + '{assistant}' }}}}"
        f"{{% elif m.role == 'assistant' %}}{{{{ {content} + eos_token }}}}"
        f"{{% elif m.role == 'tool' %}}{{{{ '{output}' + m.content + '{end}{assistant}' }}}}{{% endif %}}{{% endfor %}}"
        + ("{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}" if opens else "")
    )


HARMONY = (
    "{{ '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}"
    "{% if messages[0].role == 'system' %}{{ '<|start|>developer<|message|>' + messages[0].content }}"
    "{% set messages = messages[1:] %}{% if tools %}{{ tools | tojson }}{% endif %}{{ '<|end|>' }}"
    "{% elif tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if '<|channel|>' in m.content %}"
    "{{ raise_exception('channel tags in the content') }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

GEMMA = (  # the system message is the beginning of the first user's; no tools
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}"
    "{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

PHI = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)

GLM_TEMPLATE = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\n' + tools | tojson + '<tool_call>NAME<arg_key>K</arg_key>"
    "<arg_value>V</arg_value></tool_call>' }}{% endif %}" + LAST_USER + "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% set rest = m.content.split('</think>')[-1] %}"
    "{{ '<|assistant|>' + (m.content if loop.index0 > ns.last else '\n<think></think>' + rest) }}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

OLMO = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|assistant|>\n' + m.content + eos_token + '\n' }}{% else %}"
    "{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

SMOLLM3 = chatml("<tool_call>", default="'Today Date: ' + strftime_now('%d %B %Y')")
PLAIN_CHATML = f"{{% for m in messages %}}{CHATML_TURN}{{% endfor %}}{CHATML_PROMPT}"
EOS = f"<{BAR}end{BLANK}of{BLANK}sentence{BAR}>"
CODER_CALL = "<tool_call><function=NAME><parameter=KEY>"

FAMILIES = {
    "Qwen2.5": Family(template=chatml("<tool_call>", default="'You are Qwen.'"), end="<|im_end|>", form="hermes"),
    "Qwen3": Family(template=QWEN3, end="<|im_end|>", form="hermes", rewrites=("thought",)),
    "Qwen3-Coder": Family(template=chatml(CODER_CALL), end="<|im_end|>", form="qwen3_coder"),
    "Llama 3.1": Family(template=LLAMA, end="<|eot_id|>", form="llama3_json"),
    "Mistral": Family(
        template=MISTRAL, end="</s>", form="mistral", rewrites=("tool_block",), refuses=("tools",), system="merged"
    ),
    "DeepSeek-V3": Family(template=deepseek(drops=False, opens=False), end=EOS, form="deepseek"),
    "DeepSeek-R1": Family(
        template=deepseek(drops=True, opens=True),
        end=EOS,
        form="deepseek",
        rewrites=("dialogue", "thought", "tool_block", "tools"),
        opens=True,
    ),
    "gpt-oss": Family(
        template=HARMONY,
        end="<|end|>",
        form="harmony",
        rewrites=("dialogue", "thought", "tool_block"),
        refuses=("tools",),
    ),
    "Gemma 3": Family(template=GEMMA, end="<end_of_turn>", form="tags", refuses=("tools",), system="merged"),
    "Phi-4": Family(template=PHI, end="<|im_end|>", form="tags"),
    "GLM-4.5": Family(
        template=GLM_TEMPLATE, end="<|user|>", form="glm", rewrites=("dialogue", "thought", "tool_block", "tools")
    ),
    "SmolLM3": Family(template=SMOLLM3, end="<|im_end|>", form="hermes"),
    "OLMo 2": Family(template=OLMO, end="<|endoftext|>", form="tags"),
    "ChatML": Family(template=PLAIN_CHATML, end="<|im_end|>", form="tags"),
}


def wear(family: Family) -> Any:
    """A transformers tokenizer over bytes, with a few pairs merged, that has the template of *family*."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("o", "n"), ("r", "e"), ("e", "r")]
    vocabulary = {word: i for i, word in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = Tokenizer(BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True) for t in dict.fromkeys((family.end, "<bos>"))])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=family.template, eos_token=family.end, bos_token="<bos>"
    )


def tokenizer_of(name: str) -> HFTokenizer:
    return HFTokenizer(wear(FAMILIES[name]))
