"""Chat templates of model families, reduced to what matters for tokens, and a tokenizer that wears
one.

Facts of the published templates in our own words: role marks, where tools and dates stand, what is
trimmed, and what is dropped from earlier turns. Prose of the originals (instructions to the model)
is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from quintain.models import HFTokenizer

BAR, BLANK = "\uff5c", "\u2581"


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family's template does.

    Attributes:
        end: the token after a reply.
        form: the format of calls.
        rewrites: the cases in which earlier text changes: ``dialogue``, ``thought``,
            ``tool_block``, ``tools``.
        refuses: the cases that the template refuses.
        system: ``own`` message, ``merged`` into the user's, or ``refused``.
        opens: whether the generation prompt opens a thought.
        special: further special tokens.
        tags: tokens that are not special, but one id each.
        stops: further tokens that end a turn.
        sampled: what the template takes of a sampled turn, ``text`` or ``data``.
    """

    template: str
    end: str
    form: str
    special: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    sampled: str = "text"
    rewrites: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    system: str = "own"
    opens: bool = False


CHATML_TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
HERMES_CALLS = (
    '{% for c in m.tool_calls %}{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", '
    '"arguments": \' }}'
    "{{ c.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}"
)
CODER_CALLS = (
    "{% for c in m.tool_calls %}{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}{% for "
    "k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' + v | string + '\n"
    "</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}"
)
CHATML_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML_TOOL = (
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
)

TOOL_BLOCK = (
    "{% set system = messages[0].content if messages[0].role == 'system' else DEFAULT %}{% if "
    "tools or system %}{{ '<|im_start|>system\n' + system }}{% if tools %}{{ '\n\n<tools>' }}{% "
    "for t in tools %}{{ '\n' + t | tojson }}{% endfor %}{{ '\n</tools>CALL' }}{% endif %}{{ "
    "'<|im_end|>\n' }}{% endif %}"
)


CODER_CALL = "<tool_call><function=NAME><parameter=KEY>"


def chatml(
    call: str, *, default: str = "''", assistant: str = CHATML_TURN, calls: str = HERMES_CALLS
) -> str:
    """Role marks of ChatML, tools in the system message, results in a user's."""
    assistant = assistant.replace(" + '<|im_end|>", " }}" + calls + "{{ '<|im_end|>")
    head = TOOL_BLOCK.replace("DEFAULT", default).replace("CALL", call)
    return (
        f"{head}{{% for m in messages %}}{{% if m.role == 'system' %}}{{% elif m.role == 'tool' "
        f"%}}{CHATML_TOOL}{{% elif m.role == 'assistant' %}}{assistant}{{% else "
        f"%}}{CHATML_TURN}{{% endif %}}{{% endfor %}}{CHATML_PROMPT}"
    )


LAST_USER = (  # the last message of a user: thoughts before it are dropped, those after it stay
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set "
    "ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
QWEN3 = LAST_USER + chatml(
    "<tool_call>",
    assistant=(
        "{% set parts = m.content.split('</think>') %}{% if parts | length > 1 and loop.index0 < "
        "ns.last %}{{ '<|im_start|>assistant\n' + parts[-1].lstrip('\n') + '<|im_end|>\n' }}{% "
        "else %}{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    ),
)

# the prompt opens a thought; thoughts before the last question become an empty one
NEMOTRON = LAST_USER + chatml(
    CODER_CALL,
    calls=CODER_CALLS,
    assistant=(
        "{% set whole = m.content if '</think>' in m.content else '<think></think>' + m.content "
        "%}{% set shown = '<think></think>' + whole.split('</think>')[-1] if loop.index0 < ns.last "
        "else whole %}{{ '<|im_start|>assistant\n' + shown | trim + '<|im_end|>\n' }}"
    ),
).replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")

LLAMA = (
    "{{ bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% if tools %}{{ 'Environment: ipython\n' }}{% endif %}"
    "{{ 'Today Date: ' + (date_string or '26 Jul 2024') + '\n\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = "
    "messages[1:] %}{% endif %}"
    "{{ '<|eot_id|>' }}{% for m in messages %}"
    "{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{% if tools and loop.first and m.role == 'user' %}{{ 'Respond with {\"name\": ..., "
    '"parameters": ...}.\n\n\' }}'
    "{% for t in tools %}{{ t | tojson + '\n\n' }}{% endfor %}{% endif %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls "
    "only') }}{% endif %}"
    '{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{ m.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}"
    "{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% "
    "endif %}"
)

MISTRAL = (  # tools stand before the last message of a user; roles have to alternate
    "{{ bos_token }}" + LAST_USER + "{% set system = '' %}"
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% set ns.last = ns.last - 1 %}{% endif %}{% set turn = "
    "namespace(i=0) %}"
    "{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (turn.i % 2 == 0) %}{{ raise_exception('roles must alternate') "
    "}}{% endif %}"
    "{% set turn.i = turn.i + 1 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.index0 == ns.last %}"
    "{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + (system if loop.index0 == ns.last else '') + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine "
    "letters') }}{% endif %}"
    '{{ \'[TOOL_RESULTS]{"content": \' + m.content + \', "call_id": "\' + m.tool_call_id + '
    "'\"}[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' + ('' if loop.last else ', ') "
    "}}{% endfor %}"
    "{{ ']' + eos_token }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)


def deepseek(*, drops: bool, opens: bool) -> str:
    """DeepSeek's own tokens; R1 drops thoughts of earlier turns and opens one in its prompt."""
    user, assistant = f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>"
    output = f"<{BAR}tool{BLANK}output{BLANK}begin{BAR}>"
    end = f"<{BAR}tool{BLANK}output{BLANK}end{BAR}>"
    content = "m.content.split('</think>')[-1]" if drops else "m.content"
    begin = f"<{BAR}tool{BLANK}call{BLANK}begin{BAR}>function<{BAR}tool{BLANK}sep{BAR}>"
    name = "c.function.name"
    close = f"<{BAR}tool{BLANK}call{BLANK}end{BAR}>"
    calls = (  # arguments are text
        f"{{{{ '<{BAR}tool{BLANK}calls{BLANK}begin{BAR}>' }}}}{{% for c in m.tool_calls %}}{{{{ "
        f"'{begin}' + {name} + '\\n```json\\n' + c.function.arguments + '\\n```{close}' }}}}{{{{ "
        f"'' if loop.last else '\\n' }}}}{{% endfor %}}{{{{ "
        f"'<{BAR}tool{BLANK}calls{BLANK}end{BAR}>' + eos_token }}}}"
    )
    return (
        "{{ bos_token }}"
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if tools %}"
        f"{{{{ '## Tools' + tools | tojson + '<{BAR}tool{BLANK}calls{BLANK}begin{BAR}>' }}}}{{% "
        f"endif %}}"
        f"{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ '{user}' + m.content + "
        f"'{assistant}' }}}}"
        f"{{% elif m.tool_calls %}}{calls}"
        f"{{% elif m.role == 'assistant' %}}{{{{ {content} + eos_token }}}}"
        f"{{% elif m.role == 'tool' %}}{{{{ '{output}' + m.content + '{end}{assistant}' }}}}{{% "
        f"endif %}}{{% endfor %}}"
        + ("{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}" if opens else "")
    )


# one call in a message; thoughts stay while calls go on, and are dropped once a reply follows
HARMONY = (
    "{{ '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}{% if "
    "messages[0].role == 'system' %}{{ '<|start|>developer<|message|>' + messages[0].content }}{% "
    "set messages = messages[1:] %}{% if tools %}{{ tools | tojson }}{% endif %}{{ '<|end|>' }}{% "
    "elif tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}{% "
    "set call = namespace(name=none) %}{% for m in messages %}{% if m.role == 'assistant' %}{% if "
    "'<|channel|>' in m.content or '<|channel|>' in (m.thinking or '') %}{{ "
    "raise_exception('channel tags in the content') }}{% endif %}{% if m.tool_calls %}{% set later "
    "= namespace(reply=false) %}{% for n in messages[loop.index:] %}{% if n.role == 'assistant' "
    "and not n.tool_calls %}{% set later.reply = true %}{% endif %}{% endfor %}{% if m.content and "
    "m.thinking %}{{ raise_exception('content and thinking beside calls') }}{% endif %}{% if "
    "(m.content or m.thinking) and not later.reply %}{{ "
    "'<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' "
    "}}{% endif %}{% set call.name = m.tool_calls[0].function.name %}{{ '<|start|>assistant "
    "to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}{{ "
    "m.tool_calls[0].function.arguments | tojson + '<|call|>' }}{% elif loop.last and not "
    "add_generation_prompt %}{% if m.thinking %}{{ "
    "'<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}{{ "
    "'<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}{% else %}{% set "
    "call.name = none %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' "
    "}}{% endif %}{% elif m.role == 'tool' %}{% if not call.name %}{{ raise_exception('no call "
    "before the result') }}{% endif %}{{ '<|start|>functions.' + call.name + ' "
    "to=assistant<|channel|>commentary<|message|>' }}{{ m.content | tojson + '<|end|>' }}{% else "
    "%}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

GEMMA = (  # the system message is the beginning of the first user's; no tools
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}{% set first = "
    "messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}{% for m in "
    "messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles "
    "must alternate') }}{% endif %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else "
    "m.role) + '\n' + (first if loop.first else '') }}{{ m.content | trim + '<end_of_turn>\n' }}{% "
    "endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

PHI = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' "
    "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)

GLM_TEMPLATE = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\n' + tools | tojson + "
    "'<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>' }}{% endif "
    "%}" + LAST_USER + "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% set rest = m.content.split('</think>')[-1] %}"
    "{{ '<|assistant|>' + (m.content if loop.index0 > ns.last else '\n<think></think>' + rest) }}"
    "{% for c in m.tool_calls %}{{ '\n<tool_call>' + c.function.name }}{% for k, v in "
    "c.function.arguments | items %}"
    "{{ '\n<arg_key>' + k + '</arg_key>\n<arg_value>' + v | string + '</arg_value>' }}{% endfor %}"
    "{{ '\n</tool_call>' }}{% endfor %}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' + m.content + "
    "'\n</tool_response>' }}"
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

THINK = ("<think>", "</think>")
HERMES_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
IM = ("<|im_start|>", "<|endoftext|>")
LLAMA_MARKS = ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>")
MISTRAL_WORDS = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
MISTRAL_MARKS = (
    "[TOOL_CALLS]",
    *(f"[{slash}{word}]" for word in MISTRAL_WORDS for slash in ("", "/")),
)
DEEPSEEK_WORDS = [
    f"tool {word} {end}"
    for word in ("calls", "call", "outputs", "output")
    for end in ("begin", "end")
]
DEEPSEEK_MARKS = tuple(
    f"<{BAR}{words.replace(' ', BLANK)}{BAR}>"
    for words in ("User", "Assistant", "tool sep", *DEEPSEEK_WORDS)
)
HARMONY_MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|constrain|>")
GLM_MARKS = ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
GLM_TAGS = (*THINK, *HERMES_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
TURN_MARKS = ("<|user|>", "<|assistant|>", "<|system|>")

FAMILIES = {
    "Qwen2.5": Family(
        template=chatml("<tool_call>", default="'You are Qwen.'"),
        end="<|im_end|>",
        form="hermes",
        special=IM,
        tags=HERMES_TAGS[:2],
    ),
    "Qwen3": Family(
        template=QWEN3,
        end="<|im_end|>",
        form="hermes",
        special=IM,
        tags=(*HERMES_TAGS, *THINK),
        rewrites=("thought",),
    ),
    "Qwen3-Coder": Family(
        template=chatml(CODER_CALL, calls=CODER_CALLS),
        end="<|im_end|>",
        form="qwen3_coder",
        special=IM,
        tags=HERMES_TAGS,
    ),
    "Llama 3.1": Family(template=LLAMA, end="<|eot_id|>", form="llama3_json", special=LLAMA_MARKS),
    "Mistral": Family(
        template=MISTRAL,
        end="</s>",
        form="mistral",
        special=MISTRAL_MARKS,
        rewrites=("tool_block", "tools"),
        system="merged",
        sampled="data",
    ),
    "DeepSeek-V3": Family(
        template=deepseek(drops=False, opens=False),
        end=EOS,
        form="deepseek",
        special=DEEPSEEK_MARKS,
        tags=THINK,
    ),
    "DeepSeek-R1": Family(
        template=deepseek(drops=True, opens=True),
        end=EOS,
        form="deepseek",
        special=DEEPSEEK_MARKS,
        tags=THINK,
        rewrites=("dialogue", "thought", "tool_block", "tools"),
        opens=True,
    ),
    "gpt-oss": Family(
        template=HARMONY,
        end="<|return|>",
        form="harmony",
        special=HARMONY_MARKS,
        stops=("<|call|>",),
        rewrites=("dialogue", "thought", "tool_block", "tools"),
        sampled="data",
    ),
    "Gemma 3": Family(
        template=GEMMA,
        end="<end_of_turn>",
        form="tags",
        special=("<start_of_turn>", "<eos>"),
        system="merged",
    ),
    "Phi-4": Family(template=PHI, end="<|im_end|>", form="tags", special=(*IM, "<|im_sep|>")),
    "GLM-4.5": Family(
        template=GLM_TEMPLATE,
        end="<|user|>",
        form="glm",
        special=GLM_MARKS,
        tags=GLM_TAGS,
        rewrites=("dialogue", "thought", "tool_block", "tools"),
    ),
    "Nemotron 3": Family(
        template=NEMOTRON,
        end="<|im_end|>",
        form="qwen3_coder",
        special=IM,
        tags=(*HERMES_TAGS, *THINK),
        rewrites=("dialogue", "thought", "tool_block", "tools"),
        opens=True,
    ),
    "SmolLM3": Family(
        template=SMOLLM3, end="<|im_end|>", form="hermes", special=IM, tags=(*HERMES_TAGS, *THINK)
    ),
    "OLMo 2": Family(template=OLMO, end="<|endoftext|>", form="tags", special=TURN_MARKS),
    "ChatML": Family(template=PLAIN_CHATML, end="<|im_end|>", form="tags", special=IM),
}
DIFFERENT = ("Qwen3", "Llama 3.1", "Mistral", "DeepSeek-R1", "gpt-oss")
"""Those that differ in kind, which long tests take in `make test`."""


def wear(family: Family) -> Any:
    """A transformers tokenizer over bytes, with a few pairs merged, that has the template of
    *family*.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("o", "n"), ("r", "e"), ("e", "r")]
    vocabulary = {word: i for i, word in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = Tokenizer(BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = dict.fromkeys((family.end, "<bos>", *family.special))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in family.tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=family.template,
        eos_token=family.end,
        bos_token="<bos>",
    )


@cache
def tokenizer_of(name: str) -> HFTokenizer:
    """The tokenizer of a family, built once; nothing may change it."""
    hf = wear(FAMILIES[name])
    return HFTokenizer(hf, stop_ids=[hf.convert_tokens_to_ids(t) for t in FAMILIES[name].stops])
