"""`specplug plan`: tables, JSON and mistakes, and the worked cases of docs/plan.md by plain arithmetic."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from tests.tools.cli import tools
from tests.tools.client.servers import LocalServer
from tests.tools.forecast.configs import CONFIGS, write_config
from tests.tools.forecast.metrics import VLLM, answering
from tests.tools.forecast.test_recorded import run

PAGE = (Path(__file__).parents[3] / "docs" / "plan.md").read_text(encoding="utf-8")
CASES = re.findall(r"^### (.+?)$.*?^```sh\n(.*?)^```$(.*?)^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
ARITHMETIC = [line for *_, text in CASES for line in text.splitlines()]
invoke, planned = partial(tools.invoke, "plan"), partial(tools.stated, "plan")
H100, H200 = (3.35e12, 989e12), (4.8e12, 989e12)


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """Folders of the models, as the page's commands name them."""
    for name in CONFIGS:
        write_config(tmp_path, name)
    monkeypatch.chdir(tmp_path)


# -- the worked cases --------------------------------------------------------------------------------------------------


def layer(hidden: int, heads: int, kv_heads: int, size: int, mlp: int) -> int:
    """Weights of attention and of a gated MLP."""
    return hidden * size * (2 * heads + 2 * kv_heads) + 3 * hidden * mlp


def time(weights, active, cache, attention, batch, tokens, context, gpu, gpus=1) -> float:
    """Seconds of a step of 16-bit weights: the longer of reading and arithmetic."""
    reading = (2 * weights + 2 * batch * context * cache) / gpu[0]
    return max(reading, batch * tokens * (2 * active + context * attention) / gpu[1]) / gpus


def gain(cost: float, alpha: float, gamma: int) -> tuple[float, float]:
    """Cost with the overhead of drafting, and speed-up."""
    return cost + 0.02, (1 - alpha ** (gamma + 1)) / (1 - alpha) / (cost + 0.02)


def dense(batch: int, gamma: int) -> tuple[float, float]:
    """Cost and speed-up of the dense model with lookup."""
    weights = 32 * layer(4096, 32, 8, 128, 14336) + 128256 * 4096
    sizes = weights, weights, 32 * 2 * 8 * 128, 32 * 4 * 32 * 128, batch
    off, on = (time(*sizes, tokens, 2048, H200) for tokens in (1, gamma + 1))
    return gain(on / off, 0.6, gamma)


def with_draft_model(batch: int, gamma: int) -> tuple[float, float]:
    """Cost and speed-up of the large model on four GPUs with a draft model."""
    weights = 80 * layer(8192, 64, 8, 128, 28672) + 128256 * 8192
    sizes = weights, weights, 80 * 2 * 8 * 128, 80 * 4 * 64 * 128, batch
    off, on = (time(*sizes, tokens, 1024, H100, 4) for tokens in (1, gamma + 1))
    small = 16 * layer(2048, 32, 8, 64, 8192) + 128256 * 2048
    draft = time(small, small, 16 * 2 * 8 * 64, 16 * 4 * 32 * 64, batch, 1, 1024, H100, 4)
    return gain((on + gamma * draft) / off, 0.8, gamma)


def mixture(batch: int, gamma: int) -> tuple[float, float]:
    """Cost and speed-up of the mixture of experts with lookup."""
    times, expert = [], 3 * 2048 * 768
    fixed = 48 * (layer(2048, 32, 4, 128, 0) + 2048 * 128) + 151936 * 2048
    for tokens in (1, gamma + 1):
        touched = 128 * (1 - (120 / 128) ** (batch * tokens))
        read, active = fixed + 48 * touched * expert, fixed + 48 * 8 * expert
        times.append(time(read, active, 48 * 2 * 4 * 128, 48 * 4 * 32 * 128, batch, tokens, 1024, H200))
    return gain(times[1] / times[0], 0.5, gamma)


@pytest.mark.parametrize(("case", "by_hand"), list(zip(CASES, (dense, with_draft_model, mixture), strict=True)))
def test_a_worked_case_is_what_the_command_prints_and_what_arithmetic_gives(case, by_hand):
    _, command, table, _ = case
    rows = planned(*shlex.split(command.replace("\\\n", ""))[2:])["rows"]
    documented = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    assert len(documented) == len(rows) == 3
    for row, cells in zip(rows, documented, strict=True):
        best = row["best"]
        shown = [f"{best[key]:.2f}" for key in ("tau", "cost", "speedup")]
        first = [str(row["batch"]), f"{1e3 * row['plain_step']:.2f} ms", str(best["gamma"] or "off")]
        assert cells == [*first, *shown, f"{row['break_even']:.2f}"]
        for length in row["lengths"][1:]:
            expected = by_hand(row["batch"], length["gamma"])
            assert (length["cost"], length["speedup"]) == pytest.approx(
                expected, rel=1e-4
            )  # norms are not counted by hand
        assert best["speedup"] == max(length["speedup"] for length in row["lengths"])


@pytest.mark.parametrize("line", ARITHMETIC)
def test_a_line_of_arithmetic_is_right(line):
    label, calculation = line.rsplit(": ", 1)
    expression, result = calculation.split(" = ")
    assert label
    assert re.fullmatch(r"[\d\s.e()*/+-]+", expression)
    decimals = len(result.partition(".")[2])
    rounding = {0: 0.5, 3: 1.5e-3, 4: 1.5e-4}[decimals]  # figures of other lines are rounded as well
    assert eval(expression) == pytest.approx(float(result.replace(",", "")), abs=rounding)


def test_lines_of_arithmetic_lead_to_the_tables():
    """Each case works out a speed-up or a break-even acceptance, and its table has it."""
    assert len(ARITHMETIC) > 7
    for name, _, table, text in CASES:
        cells = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]
        for start, column in (("speed-up", 5), ("break-even", 6)):
            results = re.findall(rf"^{start}.* = (\S+)$", text, flags=re.MULTILINE)
            assert {f"{float(value):.2f}" for value in results} <= {row[column].strip() for row in cells}, name
        assert re.search("^(speed-up|break-even)", text, flags=re.MULTILINE), name


# -- the output --------------------------------------------------------------------------------------------------------


def test_tables_show_best_lengths_all_lengths_and_what_they_rest_on():
    result = invoke("--acceptance", "0.5", "--overhead", "0", "--batch", "1,64,256,512", code=0)
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "Predicted best draft length, up to 15 tokens" in text
    assert " 64 3 1.88 1.88 0.00 0.000 1.00 " in text
    assert " 512 off 1.00 1.00 1.00 0.000 2.00 " in text
    assert "Predicted speed-up by draft length" in text
    assert " off 1.00 1.00 1.00 1.00 1 1.50 1.50 0.75 0.75 " in text
    assert "a step costs the same up to 256 tokens" in text
    assert "not measured" in text
    assert "Experts" not in text


def test_a_mixture_shows_its_experts_and_a_draft_model_its_memory():
    arguments = ("--acceptance", "0.5", "--target", "Qwen3-30B-A3B", "--gpu", "H200", "--gamma", "2", "--batch", "1,64")
    result = invoke(*arguments, "--draft-model", "Llama-3.2-1B")
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "Experts touched per layer, of 128, by draft length" in text
    assert " off 8.0 125.9 1 15.5 128.0 2 22.5 128.0 " in text
    assert "Draft model Llama-3.2-1B: 1.24 B parameters, 2.47 GB of weights, 32.8 kB of KV cache per token" in text
    found = planned(*arguments, "--draft-model", "Llama-3.2-1B")
    assert found["rows"][0]["experts_touched"] == pytest.approx([8, 15.5, 22.53125])
    assert found["draft_model"]["weights"] == 2 * found["draft_model"]["parameters"]
    assert found["rows"][0]["draft_cost"] == pytest.approx(2.505 / 6.184, rel=1e-3)  # GB that both read


def test_nothing_pays_where_drafting_costs_more_than_a_whole_draft_gains():
    arguments = ("--acceptance", "0.9", "--draft-cost", "1", "--gamma", "3", "--batch", "1")
    assert " never " in invoke(*arguments).stdout
    (row,) = planned(*arguments)["rows"]
    assert (row["break_even"], row["best"]["gamma"]) == (None, 0)


def test_acceptance_by_position_limits_the_length():
    found = planned("--acceptance-by-position", "0.9,0.5", "--batch", "1", "--overhead", "0")
    assert found["rows"][0]["best"] == pytest.approx({"gamma": 2, "tau": 2.35, "tokens": 3, "cost": 1, "speedup": 2.35})
    assert found["acceptance"]["survival"] == [0.9, 0.45]


def test_padded_rows_are_computed():
    Path("replay.json").write_text(json.dumps({"runs": [run(rows=[[0, 0, 1, 50], [2, 2, 3, 50]])]}))
    arguments = ("--replay", "replay.json", "--batch", "128", "--overhead", "0")
    ragged, padded = planned(*arguments), planned(*arguments, "--padded")
    assert ragged["rows"][0]["best"]["speedup"] == 2  # 128 x (1 + 1) tokens are free
    assert [length["speedup"] for length in padded["rows"][0]["lengths"]] == pytest.approx([1, 1.5, 2 / 1.5])


def test_lookup_after_an_engines_drafter_is_compared_with_each_alone():
    runs = [
        run("engine", rows=[[1, 1, 2, 5], [1, 0, 1, 5]], engine_rates=[0.5], gamma=1),
        run("lookup", rows=[[3, 3, 4, 2], [0, 0, 1, 8]], engine_rates=[], gamma=3),
        run("both", rows=[[3, 3, 4, 2], [1, 1, 2, 4], [1, 0, 1, 4]], engine_rates=[0.5], gamma=3),
    ]
    Path("replay.json").write_text(json.dumps({"runs": runs}))
    arguments = ("--replay", "replay.json", "--batch", "1", "--overhead", "0", "--draft-cost", "0.25")
    found = planned(*arguments)
    alone = [each["rows"][0]["best"]["speedup"] for each in found["alone"]]
    assert alone == pytest.approx([1.5 / 1.25, 1.6])
    best = found["rows"][0]["best"]
    assert (best["tau"], best["cost"]) == pytest.approx((2.0, 1.25))  # lookup's tokens cost nothing
    text = " ".join(invoke(*arguments).stdout.replace("│", " ").split())
    assert " 1 1.50 (1): 1.20 1.60 (3): 1.60 2.00 (3): 1.60 1.33 1.00 " in text


def test_shipped_models_are_taken_by_name_and_a_servers_metrics_are_planned_with():
    invoke("--acceptance", "0.5", "--target", "tiny", "--draft-model", "tiny-draft", "--gpu", "h100", code=0)
    with answering(VLLM) as url:
        found = planned("--metrics", url, "--batch", "1", "--overhead", "0")
    assert found["rows"][0]["best"]["tau"] == pytest.approx(1.6)
    assert found["acceptance"]["source"].startswith("vLLM's metrics at http://127.0.0.1")


def measured_by(url_or_path: str, *arguments: str):
    """A plan of lookup for one request, whose step is 4 times as long from 5 tokens on."""
    found = planned("--acceptance", "0.9", "--costs", url_or_path, "--batch", "1", *arguments)
    assert found["overhead"] == 0  # drafting is in the measured steps
    assert found["step_unit"] == "seconds"
    assert found["cost"].startswith(f"4 sizes of steps that {url_or_path} measured")
    assert found["rows"][0]["plain_step"] == pytest.approx(0.01, rel=0.01)
    assert found["rows"][0]["best"]["gamma"] == 3
    return found["rows"]


MS = {1: 10.0, 4: 10.0, 5: 40.0, 16: 40.0}
STEPS = [{"requests": 1, "tokens": tokens, "draft_length": tokens - 1, "ms": ms} for tokens, ms in MS.items()]
STATUS = {"engines": [{"scheduler": {"control": {"mode": "on"}, "costs": {"steps": STEPS}}, "workers": []}]}


def test_costs_that_a_server_measured_are_taken_from_its_file_and_from_its_status():
    kept = [{**step, "seconds": step["ms"] / 1e3, "context_tokens": 0, "prompt_tokens": 0} for step in STEPS]
    Path("kept.json").write_text(json.dumps({"key": {}, "measured_at": 1.0, "costs": kept}))
    with LocalServer({"/specplug/status": STATUS, "/metrics": VLLM}).running() as url:
        assert measured_by("kept.json") == measured_by(url) == measured_by(url + "/metrics")
        own = planned("--metrics", url)
        assert own["cost"].startswith(f"4 sizes of steps that {url} measured")
        assert [row["batch"] for row in own["rows"]] == [1], "the server ran one request at most"
        assert planned("--metrics", url, "--saturation", "99")["cost"].startswith(
            "a step costs the same up to 99 tokens"
        )


def test_a_status_behind_keys_is_read_with_them():
    def status(handler, _):
        return STATUS if handler.headers.get("Authorization") == "Bearer secret" else (401, {"error": "Unauthorized"})

    with LocalServer({"/specplug/status": status, "/metrics": VLLM}).running() as url:
        assert "Give the key with --api-key" in planned("--metrics", url)["cost"]
        for option in ("--api-key", "--operator-key"):
            assert planned("--metrics", url, option, "secret")["cost"].startswith("4 sizes")


@pytest.mark.parametrize(
    "steps", [[], None, 5, [5], [{}], [{**STEPS[0], "ms": 0}], [{**STEPS[0], "ms": "x"}], [{**STEPS[0], "tokens": 0}]]
)
def test_a_server_without_measured_costs_is_planned_for_without(steps):
    scheduler = {"control": {"mode": "on"}, "costs": {"steps": steps}}
    status = {"engines": [{"scheduler": scheduler, "workers": []}]}
    with LocalServer({"/specplug/status": status, "/metrics": VLLM}).running() as url:
        assert "a step costs the same up to 256 tokens" in planned("--metrics", url)["cost"]
        shown = invoke("--acceptance", "0.5", "--costs", url, code=2).stderr
    assert f"{url}: no costs; found" in shown
    assert len(shown.splitlines()) == 1


def test_bits_make_reading_shorter():
    arguments = ("--acceptance", "0.5", "--target", "Llama-3.1-8B", "--gpu", "h100", "--batch", "1")
    full, quarter = (planned(*arguments, *more)["rows"][0]["plain_step"] for more in ((), ("--weight-bits", "4")))
    cache = 1024 * 131072 / 3.35e12
    assert quarter - cache == pytest.approx((full - cache) / 4)
    own = planned(*arguments[:4], "--bandwidth", "3.35", "--flops", "989", "--batch", "1")
    assert own["rows"][0]["plain_step"] == full


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one source of acceptance; found none; expected exactly one of --acceptance, --acceptance-by-position"),
        (("--acceptance", "0.5", "--metrics", "http://x"), "found --acceptance and --metrics"),
        (("--acceptance", "0.5", "--interval", "5"), "--interval: an interval is for a server's metrics"),
        (
            ("--acceptance-by-position", "0.5,x"),
            "bad acceptance; found '0.5,x'; expected probabilities from 0 to 1, such as 0.8",
        ),
        (("--acceptance-by-position", "0.5,2"), "found '0.5,2'; expected probabilities"),
        (("--acceptance", "0.5", "--batch", "0"), "bad batch sizes; found '0'"),
        (("--acceptance", "0.5", "--target", "none", "--gpu", "h200"), "none: no configuration"),
        (("--acceptance", "0.5", "--target", "Llama-3.1-8B", "--gpu", "h20"), "Did you mean 'h200'"),
        (("--acceptance", "0.5", "--target", "Llama-3.1-8B", "--flops", "5"), "a roofline needs the GPU's rates"),
        (("--acceptance", "0.5", "--gpu", "h200"), "--gpu: no roofline without a model; found h200. Give --target"),
        (
            ("--acceptance", "0.5", "--target", "Llama-3.1-8B", "--gpu", "h200", "--saturation", "9"),
            "several costs of a step; found --target and --saturation",
        ),
        (("--acceptance", "0.5", "--draft-model", "Llama-3.2-1B"), "Give --target or --draft-cost"),
        (("--replay", "none.json"), "no JSON of a replay"),
        (("--acceptance", "0.5", "--costs", "none.json"), "none.json: no costs; found FileNotFoundError"),
        (("--acceptance", "0.5", "--costs", "a", "--saturation", "9"), "found --costs and --saturation"),
    ],
)
def test_mistakes_are_one_message(arguments, message):
    shown = invoke(*arguments, code=2).stderr
    assert message in shown
    assert len(shown.splitlines()) == 1


def test_unknown_bits_are_refused():
    write_config(Path(), "Llama-3.1-8B", quantization_config={"quant_method": "other"})
    arguments = ("--acceptance", "0.5", "--target", "Llama-3.1-8B", "--gpu", "h200")
    assert "Give --weight-bits" in invoke(*arguments).stderr
    assert invoke(*arguments, "--weight-bits", "6").exit_code == 0
