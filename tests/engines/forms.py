# ruff: noqa: RUF001
"""Outputs of models with calls of two tools, and with reasoning, in the forms that engines have parsers for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("weather", {"city": "Oslo", "unit": "C"}),
    ("read", {"file": "a.py", "n": 3}),
)
TYPES = {"weather": {"city": "string", "unit": "string"}, "read": {"file": "string", "n": "integer"}}


def _calls(each: Callable[[str, dict[str, Any]], str], between: str = "") -> str:
    return between.join(each(name, arguments) for name, arguments in CALLS)


def _json(key: str, between: str, each: str = "{}") -> str:
    return _calls(lambda name, given: each.replace("{}", json.dumps({"name": name, key: given})), between)


def _tagged(call: str, argument: str, between: str = "") -> str:
    """Spell the calls with a tag for each argument; `call` has the name and all arguments, `argument` key and value."""

    def each(name: str, arguments: dict[str, Any]) -> str:
        given = "".join(
            argument.format(key=key, value=value, kind=TYPES[name][key], quoted=str(isinstance(value, str)).lower())
            for key, value in arguments.items()
        )
        return call.format(name=name, arguments=given)

    return _calls(each, between)


def _deepseek(calls: str, invoke: str, parameter: str) -> str:
    mark = "｜DSML｜"
    argument = f'<{mark}{parameter} name="{{key}}" string="{{quoted}}">{{value}}</{mark}{parameter}>\n'
    call = f'<{mark}{invoke} name="{{name}}">\n{{arguments}}</{mark}{invoke}>\n'
    return f"Look.\n\n<{mark}{calls}>\n{_tagged(call, argument)}</{mark}{calls}>"


_ARRAY = f"[{_json('arguments', ', ')}]"
_PYTHON = '[weather(city="Oslo", unit="C"), read(file="a.py", n=3)]'
_INVOKED = _tagged('<invoke name="{name}">\n{arguments}</invoke>\n', '<parameter name="{key}">{value}</parameter>\n')
_NS = "]<]minimax[>["

FORMS = {
    "hermes": "Look.\n" + _json("arguments", "\n", "<tool_call>\n{}\n</tool_call>"),
    "qwen xml": "Look.\n"
    + _tagged(
        "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        "<parameter={key}>\n{value}\n</parameter>\n",
        "\n",
    ),
    "mimo": "Look.\n"
    + _tagged(
        "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        "<parameter={key}>{value}</parameter>\n",
        "\n",
    ),
    "seed": "Look.\n"
    + _tagged(
        "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
        "<parameter={key}>{value}</parameter>\n",
        "\n",
    ),
    "glm45": "Look."
    + _tagged(
        "<tool_call>{name}\n{arguments}</tool_call>", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
    ),
    "glm47": "Look."
    + _tagged("<tool_call>{name}{arguments}</tool_call>", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
    "spark": "Look.\n"
    + _tagged(
        "<tool_call>{name}\n{arguments}\n</tool_call>", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>", "\n"
    ),
    "iquest": "Look.\n"
    + _tagged(
        "<iquest_tool_call>{name}\n{arguments}</iquest_tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        "\n",
    ),
    "hunyuan": "Look.<tool_calls>\n"
    + _tagged(
        "<tool_call>{name}<tool_sep>\n{arguments}</tool_call>\n",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    )
    + "</tool_calls>",
    "hunyuan v4": "Look.<tool_calls>"
    + _tagged("<tool_call>{name}{arguments}</tool_call>", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
    + "</tool_calls>",
    "tool calls": f"<tool_calls>{_ARRAY}</tool_calls>",
    "mistral": f"Look.[TOOL_CALLS] {_ARRAY}",
    "mistral args": "Look." + _calls(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}"),
    "llama": "<|python_tag|>" + _json("parameters", "; "),
    "deepseek v3": "Look.<｜tool▁calls▁begin｜>"
    + _calls(
        lambda name, given: (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(given)}\n```<｜tool▁call▁end｜>"
        ),
        "\n",
    )
    + "<｜tool▁calls▁end｜>",
    "deepseek v3.1": "Look.<｜tool▁calls▁begin｜>"
    + _calls(lambda name, given: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(given)}<｜tool▁call▁end｜>")
    + "<｜tool▁calls▁end｜>",
    "deepseek v3.2": _deepseek("function_calls", "invoke", "parameter"),
    "deepseek v4": _deepseek("tool_calls", "invoke", "parameter"),
    "deepseek v4.1": _deepseek(" calls", " invoke", " parameter"),
    "kimi k2": "Look.<|tool_calls_section_begin|>"
    + "".join(
        f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{json.dumps(given)}<|tool_call_end|>"
        for n, (name, given) in enumerate(CALLS)
    )
    + "<|tool_calls_section_end|>",
    "kimi k3": "<|open|>response<|sep|>Look.<|close|>response<|sep|><|open|>tools<|sep|>"
    + _tagged(
        '<|open|>call tool="{name}" index="1"<|sep|>{arguments}<|close|>call<|sep|>',
        '<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>',
    )
    + "<|close|>tools<|sep|>",
    "python": _PYTHON,
    "llama 4": f"<|python_start|>{_PYTHON}<|python_end|>",
    "olmo": '<function_calls>weather(city="Oslo", unit="C")\nread(file="a.py", n=3)</function_calls>',
    "lfm2": f"<|tool_call_start|>{_PYTHON}<|tool_call_end|>Look.",
    "minimax m2": f"Look.\n<minimax:tool_call>\n{_INVOKED}</minimax:tool_call>",
    "minimax m3": f"Look.\n{_NS}<tool_call>\n"
    + _tagged(f'{_NS}<invoke name="{{name}}">{{arguments}}{_NS}</invoke>\n', f"{_NS}<{{key}}>{{value}}{_NS}</{{key}}>")
    + f"{_NS}</tool_call>",
    "dots": f"Look.\n<dots_function_call>\n{_INVOKED}</dots_function_call>",
    "step3": "Look.\n<｜tool_calls_begin｜>\n"
    + _tagged(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n{arguments}'
        "</steptml:invoke><｜tool_call_end｜>\n",
        '<steptml:parameter name="{key}">{value}</steptml:parameter>\n',
    )
    + "<｜tool_calls_end｜>",
    "gemma": 'Look.<|tool_call>call:weather{city:<|"|>Oslo<|"|>,unit:<|"|>C<|"|>}<tool_call|>'
    '<|tool_call>call:read{file:<|"|>a.py<|"|>,n:3}<tool_call|>',
    "gigachat gcml": "Look.<｜GCML｜tool_calls>\n"
    + _tagged(
        '<｜GCML｜invoke name="{name}">\n{arguments}</｜GCML｜invoke>\n',
        '<｜GCML｜parameter name="{key}" string="{quoted}">{value}</｜GCML｜parameter>\n',
    )
    + "</｜GCML｜tool_calls>",
    "inkling": "<|content_text|>Look.<|end_message|>"
    + _calls(
        lambda name, given: (
            f"<|message_model|>{name}<|content_invoke_tool_json|>"
            f"{json.dumps({'name': name, 'args': given})}<|end_message|>"
        )
    ),
    "apertus": f"Look.<|tools_prefix|>[{_calls(lambda name, given: json.dumps({name: given}), ', ')}]<|tools_suffix|>",
    "cohere": "<|START_ACTION|>["
    + _calls(lambda name, given: json.dumps({"tool_call_id": "0", "tool_name": name, "parameters": given}), ",\n")
    + "]<|END_ACTION|>",
    "harmony": "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(given)}<|call|>"
        for name, given in CALLS
    ),
    "k2 horizon": "Look.\n<ifm|tool_calls>\n"
    + _tagged(
        "<ifm|tool_call>{name}\n{arguments}</ifm|tool_call>\n",
        "<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>{value}</ifm|arg_value>\n",
    )
    + "</ifm|tool_calls>",
    "minicpm": "Look.\n"
    + _tagged('<function name="{name}">{arguments}</function>', '<param name="{key}">{value}</param>', "\n"),
    "muse": "to=functions<|message|><atem:function_calls>\n"
    + _tagged(
        '<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n',
        '<atem:parameter name="{key}" string="{quoted}">{value}</atem:parameter>\n',
    )
    + "</atem:function_calls><|eom|>",
    "granite": f"<|tool_call|>{_ARRAY}",
    "granite 20b": _json("arguments", "", "<function_call> {}"),
    "array": _ARRAY,
    "required": f"[{_json('parameters', ', ')}]",
    "ernie": "Look.\n\n" + _json("arguments", "\n\n", "<tool_call>\n{}\n</tool_call>") + "\n",
    "jamba": f"Look.<tool_calls>{_ARRAY}</tool_calls>",
    "plamo": "Look.<|plamo:begin_tool_requests:plamo|>"
    + _calls(
        lambda name, given: (
            f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
            f"{json.dumps(given)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        )
    )
    + "<|plamo:end_tool_requests:plamo|>",
    "functiongemma": "<start_function_call>call:weather{city:<escape>Oslo<escape>,unit:<escape>C<escape>}"
    "<end_function_call><start_function_call>call:read{file:<escape>a.py<escape>,n:<escape>3<escape>}"
    "<end_function_call>",
    "longcat": "Look." + _json("arguments", "\n", "<longcat_tool_call>\n{}\n</longcat_tool_call>"),
    # Some streams hold one call at most.
    "intern": 'Look.<|action_start|> <|plugin|>\n{"name": "weather", "parameters": {"city": "Oslo", "unit": "C"}}'
    "<|action_end|>",
    "internlm": 'Look.<|action_start|><|plugin|>{"name": "weather", "parameters": {"city": "Oslo", "unit": "C"}}'
    "<|action_end|>",
    "gigachat": 'Look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": '
    '{"city": "Oslo", "unit": "C"}}',
    "gigachat call": 'Look.<|function_call|>{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}',
}
"""Calls of both tools, most of them after a word of content."""
ONE_CALL = ("intern", "internlm", "gigachat", "gigachat call")

_WHY = "See, 2 + 2.\nSo it is four."
_ANSWER = "It is 4.\n\nBye"

THOUGHTS = {
    "think": f"<think>\n{_WHY}\n</think>\n\n{_ANSWER}",
    "opened": f"{_WHY}\n</think>\n\n{_ANSWER}",
    "none": _ANSWER,
    "think, tools": f"<think>\n{_WHY}\n</think>\n\n{FORMS['hermes']}",
    "minimax m3": f"<mm:think>{_WHY}</mm:think>{_ANSWER}",
    "kimi": f"◁think▷{_WHY}◁/think▷{_ANSWER}",
    "kimi k3": f"<|open|>think<|sep|>{_WHY}<|close|>think<|sep|>"
    f"<|open|>response<|sep|>{_ANSWER}<|close|>response<|sep|>",
    "mistral": f"[THINK]{_WHY}[/THINK]{_ANSWER}",
    "harmony": f"<|channel|>analysis<|message|>{_WHY}<|end|><|start|>assistant"
    f"<|channel|>final<|message|>{_ANSWER}<|return|>",
    "gemma": f"<|channel>thought\n{_WHY}<channel|>{_ANSWER}",
    "k2 horizon": f"<ifm|think>{_WHY}</ifm|think>\n{_ANSWER}",
    "muse": f"to=self<|message|>{_WHY}<|eom|><|start|>assistant to=user<|message|>{_ANSWER}<|eot|>",
    "inkling": f"<|content_thinking|>{_WHY}<|end_message|><|message_model|><|content_text|>{_ANSWER}<|end_message|>",
    "cohere": f"{_WHY}<|END_THINKING|><|START_TEXT|>{_ANSWER}<|END_TEXT|>",
    "apertus": f"<|inner_prefix|>{_WHY}<|inner_suffix|>{_ANSWER}",
    "granite": f"Here is my thought process:\n{_WHY}\nHere is my response:\n{_ANSWER}",
    "hunyuan": f"<think>\n{_WHY}\n</think>\n<answer>\n{_ANSWER}\n</answer>",
    "ernie": f"{_WHY}\n</think>\n\n<response>\n{_ANSWER}\n</response>\n",
    "seed": f"<seed:think>{_WHY}</seed:think>{_ANSWER}",
    "plamo": f"<|plamo:begin_think:plamo|>{_WHY}<|plamo:end_think:plamo|>{_ANSWER}",
}
"""Reasoning and an answer."""
