"""An audit's side over HTTP: requests and answers of both dialects, streams, counts, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from specplug.errors import EngineError
from specplug.tools.audit.probe import DraftCounts, Probe
from specplug.tools.audit.run import run
from specplug.tools.audit.server import ServerSide, connect
from specplug.tools.client.answers import Answer, ToolCall
from specplug.tools.client.http import ServerClient
from tests.tools.cli.tools import invoke
from tests.tools.client.servers import COMPLETION, GENERATED, LocalServer, stream_of

DELTAS = [
    {"delta": {"role": "assistant", "content": ""}},
    {"delta": {"reasoning_content": "hm"}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": '{"ci'}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": 'ty": 1}'}}]}},
    {"delta": {}, "finish_reason": "tool_calls"},
]
STREAM = stream_of(*({"choices": [delta]} for delta in DELTAS))
METRICS = (
    'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{engine="1"} 2.0\n'
    'vllm:spec_decode_num_draft_tokens_total{engine="0"} 10.0\n'
)
MODELS, TOKENS = {"data": [{"id": "m"}]}, {"tokens": [1, 2]}
VLLM = {"/version": {"version": "0.32.0"}, "/v1/completions": COMPLETION, "/metrics": METRICS}
SGLANG = {"/server_info": {"version": "0.5.23"}, "/generate": GENERATED}
WANTED = Answer(token_ids=(7, 8), text="ab", finish_reason="length", top_logprobs=({7: -0.1}, {9: -0.5, 8: -2.0}))
PROBE = Probe(prompt=(1, 2), max_tokens=2, temperature=1.5, top_k=20, stop=("x",), top_logprobs=3, expected=(1, 2, 7))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    chats = {"/v1/chat/completions": STREAM}
    found = LocalServer({"/v1/models": MODELS, "/tokenize": TOKENS, **chats, **request.param})
    with found.running():
        yield found


def done() -> None: ...


@pytest.mark.parametrize("server", [VLLM, SGLANG], ids=["vLLM", "SGLang"], indirect=True)
def test_completions_of_both_dialects(server, request):
    side = ServerSide(ServerClient(f"{server.url}/v1"))
    name = request.node.callspec.id
    assert name in side.describe()
    assert side.tokenize("ab") == (1, 2)
    assert side.answer([PROBE], 1, done) == [WANTED]
    sent = server.received[-1]
    if name == "vLLM":
        assert (sent["prompt"], sent["logprobs"], sent["top_k"]) == ([1, 2], 3, 20)
        assert sent["vllm_xargs"] == {"specplug_references": [1, 2, 7]}
    else:
        params = sent["sampling_params"]
        assert (sent["input_ids"], sent["top_logprobs_num"], params["top_k"]) == ([1, 2], 3, 20)
        assert params["custom_params"] == {"specplug_references": [1, 2, 7]}
    side.close()


@pytest.mark.parametrize("server", [SGLANG], indirect=True)
@pytest.mark.parametrize(
    ("other", "status", "named"),
    [({"disable_overlap_schedule": True}, "unproven", "disable_overlap_schedule: False"), ({"port": 2}, None, "")],
)
def test_flags_are_compared_before_answers(server, other, status, named):
    """Where both servers show them; those of speculation and of the place where a server runs may differ."""
    own = {"version": "0.5.23", "disable_overlap_schedule": False, "port": 1, "speculative_algorithm": "SPECPLUG"}
    control = LocalServer({**server.routes, "/server_info": {**own, "speculative_algorithm": None, **other}})
    server.routes |= {"/server_info": own, "/metrics": ""}
    with control.running():
        report = run(
            audited=lambda: connect(ServerClient(server.url)),
            control=lambda: connect(ServerClient(control.url)),
            texts=["ab"],
            checks=[],
            max_tokens=2,
            together=1,
            progress=lambda title, count: done,
        )
    assert [finding.status for finding in report.findings] == ([status] if status else [])
    assert named in "".join(text for finding in report.findings for text in finding.examples)


@pytest.mark.parametrize("server", [VLLM], indirect=True)
@pytest.mark.parametrize(
    ("shown", "raw", "is_chat"),
    [
        ({"prompt": "<user>question</user>"}, False, True),  # vLLM's answer
        ({"text": "<user>question</user>"}, False, True),  # SGLang's
        ({"prompt": "<user>question</user>"}, True, False),
        ({"prompt": "question\n"}, False, False),
        (None, False, False),
    ],
)
def test_prompts_are_chats_where_the_model_has_a_template_that_marks_roles(server, shown, raw, is_chat):
    server.routes["/detokenize"] = shown
    with closing(ServerSide(ServerClient(server.url), raw=raw)) as side:
        assert side.has_template is is_chat
        assert side.tokenize("ab") == (1, 2)
    sent = {"messages": [{"role": "user", "content": "ab"}]} if is_chat else {"prompt": "ab"}
    assert server.received[-1] == {"model": "m", **sent}


@pytest.mark.parametrize(("server", "key"), [(VLLM, "vllm_xargs"), (SGLANG, "custom_params")], indirect=["server"])
def test_further_fields_are_sent_with_completions_and_chats(server, key):
    side, fields = ServerSide(ServerClient(server.url)), {"verifier": "typical", "acceptance_threshold": 0.3}
    side.answer([Probe(prompt=(1,), fields=fields), Probe(messages=({"role": "user"},), fields=fields)], 1, done)
    completion, chat = server.received[-2:]
    expected = {"specplug_verifier": "typical", "specplug_acceptance_threshold": 0.3}
    assert completion.get("sampling_params", completion)[key] == expected
    assert chat[key] == expected
    side.close()


@pytest.mark.parametrize("server", [VLLM, SGLANG], indirect=True)
def test_a_models_sampling_defaults_do_not_apply(server):
    """Servers fill in what a request leaves out, by the generation_config.json of the model."""
    with closing(ServerSide(ServerClient(server.url))) as side:
        side.answer([Probe(prompt=(1,)), Probe(messages=({"role": "user"},))], 1, done)
    completion, chat = server.received[-2:]
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0}
    assert completion.get("sampling_params", completion).items() >= neutral.items()
    assert chat.items() >= neutral.items()


@pytest.mark.parametrize("server", [VLLM], indirect=True)
def test_a_streamed_chat_is_put_together(server):
    probe = Probe(messages=({"role": "user", "content": "x"},), tools=({"name": "weather"},), stream=True)
    (found,) = ServerSide(ServerClient(server.url)).answer([probe], 1, done)
    calls = (ToolCall("weather", '{"city": 1}'),)
    assert found == Answer(reasoning="hm", tool_calls=calls, finish_reason="tool_calls")
    assert server.received[-1]["tool_choice"] == "auto"


@pytest.mark.parametrize("server", [VLLM], indirect=True)
def test_vllms_own_counts_serve_without_specplug(server):
    assert ServerSide(ServerClient(server.url)).draft_counts() == DraftCounts(accepted=7, rejected=3)
    server.routes["/metrics"] = ""
    assert ServerSide(ServerClient(server.url)).draft_counts() is None


@pytest.mark.parametrize("server", [VLLM], indirect=True)
def test_a_refused_probe_has_an_error(server):
    side = ServerSide(ServerClient(server.url))
    del server.routes["/v1/completions"]
    (found,) = side.answer([PROBE], 1, done)
    assert found.error is not None
    assert "HTTP 404" in found.error
    assert found.refused
    server.routes["/v1/completions"] = "no JSON"
    (broken,) = side.answer([PROBE], 1, done)
    assert broken.error is not None
    assert not broken.refused


@pytest.mark.parametrize("server", [{}], indirect=True)
def test_other_servers_are_refused(server):
    with pytest.raises(EngineError, match="expected a vLLM or SGLang server"):
        ServerSide(ServerClient(server.url))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny", "http://127.0.0.1:1"], "a control is a server"),
        (["http://127.0.0.1:1", "tiny"], "not a server"),
        (["tiny", "--check", "gredy"], "Did you mean 'greedy'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    assert words in invoke("audit", *arguments, code=2).output


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize("server", [VLLM], indirect=True)
def test_chats_are_cut_to_the_text_of_their_last_message_with_a_note(server, tmp_path):
    question = {"role": "user", "content": "one"}
    parts = [{"type": "text", "text": "two"}, IMAGE, {"type": "text", "text": "three"}]
    chats = [[question], [question, {"role": "user", "content": parts}], [question, {"role": "user"}]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    found = invoke("audit", server.url, server.url, "--prompts", tmp_path, "--check", "greedy")
    texts = [body["prompt"] for body in server.received if body.get("prompt") and "max_tokens" not in body]
    assert texts == ["one", "two\nthree"]
    assert "1 of 3 prompts are left out, as their last message has no text" in found.stderr
    assert "1 of 2 prompts are cut to the text of their last message" in found.stderr


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": [IMAGE]}])
def test_prompts_without_text_are_refused(message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [message]}))
    message = invoke("audit", "http://127.0.0.1:1", "--prompts", path, code=2).stderr
    assert f"{path}: no prompts to audit; found 1 prompts, none with text" in message
