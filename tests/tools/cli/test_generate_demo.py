"""`specplug generate` and `specplug demo`, on the shipped model."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial

import pytest

from specplug.errors import EngineError, RequestError
from specplug.plugins.embedded import embedded_engine
from specplug.tools.cli.generate import rate_text
from specplug.tools.cli.launch import prompt_form
from specplug.tools.demo import model_path
from tests.tools.cli.tools import invoke, stated

answers = partial(stated, "generate", "tiny")
BINARY = str(model_path("tiny") / "model.safetensors")
EDIT = "<|document|>a = 1\nb = 2\nc = 3\nd = 4<|edit|>b = 2\nc = 5\nd = 4<|answer|>"
PROMPT = "<|code|>import os\nimport sys\n\ndef main():\n    return os.path.join(sys.argv[0], os.getcwd())\n"


@pytest.fixture(autouse=True)
def no_deadline(monkeypatch):
    """Drafts must not depend on the machine's load."""
    monkeypatch.setenv("SPECPLUG_CONFIG", '{"faults": {"host_deadline_ms": null}}')


def test_generate_is_the_same_with_and_without_speculation():
    plain = answers(PROMPT, "--max-tokens", "60", "--plain", "--engine", "transformers")
    fast = answers(PROMPT, "--max-tokens", "60", "-n", "6")
    assert fast["answers"] == plain["answers"]
    assert plain["statistics"]["drafted"] == 0
    assert fast["statistics"]["drafted"] > 0
    assert fast["statistics"]["target_steps"] <= plain["statistics"]["target_steps"]


def test_generate_beside_plain_decoding():
    found = answers(EDIT, "--max-tokens", "60", "--compare")["statistics"]
    assert found["identical"] is True
    assert found["plain_seconds"] > 0
    assert (found["tokens_in_loops"], found["tokens_per_step"] > 1) == (0, True)  # most steps measure what steps cost
    result = invoke("generate", "tiny", EDIT, "--max-tokens", "60", "--compare")
    assert "times as fast with speculation; outputs are identical" in result.stderr
    assert "loops" not in result.stderr


def test_generate_ends_with_1_where_outputs_differ(monkeypatch):
    module = sys.modules["specplug.tools.cli.generate"]  # the package's attribute of that name is the command
    original = module._serve

    def wrong(engine, requests, *, show):
        answers, seconds = original(engine, requests, show=show)
        return (answers if show else [{**answer, "text": "other"} for answer in answers]), seconds

    monkeypatch.setattr(module, "_serve", wrong)
    assert "outputs DIFFER" in invoke("generate", "tiny", EDIT, "--max-tokens", "4", "--compare", code=1).stderr


def test_generate_flags_loops():
    found = answers("import", "--max-tokens", "120")["statistics"]
    assert found["tokens_in_loops"] > 60
    shown = invoke("generate", "tiny", "import", "--max-tokens", "120").stderr
    assert f"{found['tokens_in_loops']} tokens in loops" in shown


def test_a_slow_rate_is_not_rounded_to_nothing():
    assert [rate_text(rate) for rate in (0.44, 9.26, 158.3)] == ["0.4 tokens/s", "9.3 tokens/s", "158 tokens/s"]


def test_generate_streams_the_text_and_puts_statistics_on_stderr():
    whole = answers(PROMPT, "--max-tokens", "30")["answers"][0]["text"]
    result = invoke("generate", "tiny", PROMPT, "--max-tokens", "30", code=0)
    assert result.stdout == whole + "\n"
    assert "per step" in result.stderr
    assert "tiny" in result.stderr


def test_generate_serves_files_and_standard_input_together(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    both = answers("-", "--file", str(path), "--max-tokens", "8", input="<|code|>x = 1\n")
    alone = answers("-", "--max-tokens", "8", input="<|code|>x = 1\n")
    assert len(both["answers"]) == 2
    assert both["answers"][0] == alone["answers"][0]


def test_a_reference_is_drafted_from(tmp_path):
    prompt = "<|code|>def first(items):\n"
    answer = answers(prompt, "--max-tokens", "40")
    reference = tmp_path / "reference.txt"
    reference.write_text(prompt + answer["answers"][0]["text"])
    helped = answers(prompt, "--max-tokens", "40", "--reference", str(reference))
    assert helped["answers"] == answer["answers"]
    assert answer["statistics"]["accepted_by_source"].get("ngram/reference", 0) == 0
    assert helped["statistics"]["accepted_by_source"]["ngram/reference"] > 0


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """The shipped model with a chat template that marks roles."""
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(model_path("tiny"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|code|>def{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_generate_puts_prompts_into_the_models_chat_template(chatty):
    result = invoke("generate", chatty, "write", "--system", "be brief", "--max-tokens", "20", "--json", code=0)
    found = json.loads(result.stdout)
    rendered = "<|system|>be brief\n<|user|>write\n<|code|>def"
    assert found["answers"] == answers(rendered, "--max-tokens", "20")["answers"]
    assert found["statistics"]["chat_template"] is True
    assert "in the model's chat template; --raw" in result.stderr
    raw = invoke("generate", chatty, "write", "--raw", "--max-tokens", "20", "--json")
    assert json.loads(raw.stdout)["answers"] == answers("write", "--max-tokens", "20")["answers"]
    assert "sent as they are (--raw)" in raw.stderr


def test_a_tokenizer_that_cannot_be_read_names_the_remedy(tmp_path):
    with pytest.raises(RequestError, match=r"no chat template can be read.*--raw"):
        prompt_form(str(tmp_path), raw=False)
    assert prompt_form(str(tmp_path), raw=True)[0]("x") == "x"


def test_the_shipped_models_template_marks_no_roles_and_is_left_out():
    result = invoke("generate", "tiny", PROMPT, "--max-tokens", "4")
    assert "has no chat template that marks roles" in " ".join(result.stderr.split())
    assert answers(PROMPT, "--max-tokens", "20")["answers"] == answers(PROMPT, "--max-tokens", "20", "--raw")["answers"]


def test_an_answer_that_ends_at_once_says_so():
    (whole,) = answers(EDIT)["answers"]
    assert whole["finish_reason"] == "stop"
    for arguments, why in (
        ((EDIT + whole["text"],), "is empty: the model ended it at once"),
        ((EDIT + whole["text"], "--raw"), "leave out --raw"),
        ((EDIT, "--stop", whole["text"][:2]), "or it began with a --stop text"),
        ((EDIT,), None),
    ):
        result = invoke("generate", "tiny", *arguments, code=0)
        assert why in result.stderr if why else "answer 1" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "tiny"), "no prompt"),
        (("generate", "tiny", "x", "--system", "y"), "a system prompt needs a chat template"),
        (("generate", "tiny", "x", "--proposer", "ngrm"), "Did you mean 'ngram'?"),
        (("generate", "/no/such/model", "x"), "/no/such/model: cannot load the model; found no such folder"),
        (("generate", "tiny", "x", "--engine", "vllm"), "Start `vllm serve MODEL ...` (docs/serving.md), and then"),
        (("audit", "tiny", "--engine", "sglang"), "Start `python -m sglang.launch_server --model-path MODEL ...`"),
        (("demo", "--engine", "vlm"), "--engine: models are run by transformers only; found 'vlm'"),
        (("generate", "tiny", "x", "--top-p", "0"), "top_p"),
        (("generate", "tiny", "x", "-n", "1000"), "num_speculative_tokens"),
        (("generate", "tiny", "x", "--dtype", "float99"), "unknown dtype"),
        (("generate", "tiny", "x", "--device", "gpu"), "no such device; found 'gpu'; expected cpu"),
        (("generate", "tiny", "x", "--device", "cuda:77"), "no such device; found 'cuda:77'; expected cpu"),
        (("generate", "tiny", "--file", BINARY), "cannot read a file"),
        (("generate", "tiny", "x", "--reference", BINARY), "cannot read a file"),
    ],
)
def test_mistakes_get_one_clear_message(arguments, message):
    assert message in invoke(*arguments, code=2).output


def test_an_engine_that_is_not_there_or_does_not_import_gets_one_clear_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "specplug_transformers.text_engine", None)
    assert "the embedded engine: cannot load" in invoke("generate", "tiny", "x", code=2).output
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(EngineError, match="no embedded engine is installed"):
        embedded_engine()


def test_demo_compares_and_plots(tmp_path):
    plot = tmp_path / "demo.png"
    result = invoke("demo", "--tasks", "1", "--max-tokens", "60", "--plot", plot, code=0)
    assert "Outputs are identical in all 4 tasks." in result.stdout
    assert "they show the mechanism" in " ".join(result.stdout.split())
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_demo_json_has_a_row_per_kind_and_their_sum():
    rows = stated("demo", "--tasks", "1", "--max-tokens", "30")["rows"]
    assert [row["kind"] for row in rows] == ["edit", "quote", "json", "code", "all"]
    assert rows[-1]["tasks"] == sum(row["tasks"] for row in rows[:-1]) == 4
    assert all(row["identical"] == row["tasks"] for row in rows)


def test_demo_answers_chats_where_the_model_has_a_template(chatty):
    result = invoke("demo", "--model", chatty, "--tasks", "1", "--max-tokens", "5", code=0)
    assert "in the model's chat template" in result.stderr
    assert result.stdout.startswith("> Explain in two or three sentences")
    assert "Outputs are identical in all 6 tasks." in result.stdout
    rows = stated("demo", "--model", chatty, "--max-tokens", "3")["rows"]
    kinds = ["chat", "code", "edits", "summaries", "answers", "structured"]
    assert {row["kind"]: row["tasks"] for row in rows} == {**dict.fromkeys(kinds, 2), "all": 12}
    assert "sent as they are (--raw)" in invoke("demo", "--tasks", "1", "--max-tokens", "5", "--raw").stderr


def test_demo_exits_1_when_outputs_differ(monkeypatch):
    from specplug.verify import reference
    from tests.mutants import LOSSY_MUTANTS

    monkeypatch.setattr(reference, "ReferenceVerifier", LOSSY_MUTANTS["accepts always"])
    assert "Outputs differ in" in invoke("demo", "--tasks", "1", "--max-tokens", "30", code=1).stdout


def test_the_plot_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke("demo", "--tasks", "1", "--max-tokens", "5", "--plot", tmp_path / "x.png", code=2)
    assert "specplug[plot]" in result.output
