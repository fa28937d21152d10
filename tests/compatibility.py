"""The compatibility matrix: each cell of docs/compatibility.md names the test that holds it.

    python -m tests.compatibility

writes the page from this table and from what the newest runs of the suites recorded (see `tests/conftest.py`): a test
that passed in `make test` is shown as such, and one that only `make test-all` runs as slow.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
RECORDS = ROOT / ".cache" / "compatibility"
VERSIONS = ROOT / ".ci" / "environments" / "versions"
"""Requirements of the older versions that `make test-versions` runs; the files are named after engine and version."""

T = "transformers"
V1 = "vLLM V1"
V2 = "vLLM V2"
S = "SGLang"
ENGINES = (T, V1, V2, S)
SUITES = {T: "tests/transformers", V1: "tests/engines/vllm", V2: "tests/engines/vllm", S: "tests/engines/sglang"}

REFUSED = "refused: "
"""Stands before a test that shows that the feature is refused by name."""

NONE = "-"
"""The engine does not have the feature, or not with speculation."""

Cells = Mapping[str, str]

FIELD = "test_fields.py::test_a_field_is_as_its_row_says"


def vllm(test: str, on_v2: str = "v2") -> Cells:
    """Return the cells of a test on both of vLLM's runners, whose name stands for `{v}`."""
    return {V1: test.replace("{v}", "v1"), V2: test.replace("{v}", on_v2)}


def fields(row: str) -> Cells:
    """Return the cells of a row of the table of request fields, on servers."""
    return {**vllm(f"{FIELD}[{{v}}-{row}", "v2_async"), S: f"{FIELD}[overlap-{row}"}


def suite(test: str, on_sglang: str = "") -> Cells:
    """Return the cells of a test that servers share."""
    return {**vllm(f"{test}[{{v}}"), S: f"{test}{on_sglang}"}


FEATURES: dict[str, Cells] = {
    "greedy text": {
        T: "test_greedy.py::",
        **vllm("test_greedy.py::test_all_proposers_in_one_batch[{v}"),
        S: "test_greedy.py::",
    },
    "temperature": {
        T: "test_distribution.py::",
        **vllm("test_sampling.py::test_the_distribution_is_the_targets[{v}"),
        S: "test_sampling.py::test_drafts_are_verified_by_the_distribution",
    },
    "top-k, top-p": {
        T: "test_fields.py::test_engine[top_p",
        **vllm("test_sampling.py::test_top_k_and_top_p[{v}"),
        S: "test_sampling.py::test_top_k_and_top_p",
    },
    "min-p": {
        T: "test_fields.py::test_engine[min_p",
        V1: f"{REFUSED}{FIELD}[v1-min_p",
        V2: f"{FIELD}[v2_async-min_p",
        S: "test_sampling.py::test_greedy_requests_and_min_p_beside_sampled_ones",
    },
    "seeds": {T: "test_seeds.py::", **fields("seed"), S: "test_sampling.py::test_a_seed_has_one_text"},
    "penalties, minimum tokens": {T: "test_fields.py::test_engine", **fields("frequency_penalty")},
    "stop strings": {T: "test_stopping.py::", **fields("stop-")},
    "log-probabilities": {T: NONE, **fields("logprobs-"), S: f"{FIELD}[overlap-return_logprob"},
    "several answers (n > 1)": {
        T: "test_custom_generate.py::test_samples_follow_manual_seed_and_differ",
        **fields("n-"),
    },
    "structured output": {
        T: "test_grammar.py::",
        V1: "test_grammar.py::TestGrammar::test_as_without_speculation",
        V2: f"{FIELD}[v2_async-structured_outputs",
        S: "test_grammar.py::TestGrammar::test_as_without_speculation[overlap",
    },
    "lossy acceptance, opt-in": {
        T: "test_lossy.py::",
        **vllm("test_verifier.py::test_each_request_has_its_own_threshold[{v}"),
        S: "test_sampling.py::test_sglangs_own_lossy_acceptance_is_labelled_and_its_departure_counted",
    },
    "tool calls and reasoning": {
        T: NONE,
        V1: "test_suite.py::TestChats::",
        V2: "test_tool_streams.py::",
        S: "test_suite.py::TestChats::",
    },
    "LoRA": {
        T: NONE,
        **vllm("test_lora.py::test_adapters_keep_their_texts_and_are_reported_apart[{v}"),
        S: f"{REFUSED}test_registration.py::test_lora_is_refused",
    },
    "prompt embeddings": {
        T: NONE,
        **vllm("test_suite.py::TestEmbeddings::test_answers_are_stocks_and_gaps_are_known[{v}"),
        S: "test_suite.py::TestEmbeddings::",
    },
    "prefix caching": {T: NONE, **suite("test_suite.py::TestFeatures::test_prefix_caching", "[overlap")},
    "chunked prefill": {
        T: "test_models.py::test_every_model_gives_its_own_answers",
        **fields("max_tokens-wrong-alone-chunks"),
        S: f"{FIELD}[overlap-max_new_tokens-wrong-beside-chunks",
    },
    "preemption": {T: NONE, **suite("test_suite.py::TestLifecycle::test_preempted_and_resumed")},
    "aborts": {
        T: "test_lifecycle.py::test_abort_a_running_or_waiting_request",
        **suite("test_suite.py::TestLifecycle::test_aborted"),
    },
    "short convolutions (LFM2)": {
        T: "test_models.py::test_ragged_rows_give_the_logits_of_plain_forwards[convolved lfm2",
        **vllm("test_recurrent.py::TestRecurrent::test_draft_lengths_that_change_at_every_step[lfm2-{v}"),
        S: "test_recurrent.py::TestRecurrent::test_draft_lengths_that_change_at_every_step",
    },
    "recurrent layers (Mamba-2, gated delta nets)": {
        T: f"{REFUSED}test_models.py::test_models_that_cannot_be_served_are_refused[Qwen3Next",
        V1: "test_recurrent.py::TestRecurrent::test_draft_lengths_that_change_at_every_step[falcon_h1-v1",
        V2: "test_recurrent.py::TestRecurrent::test_prompts_whose_beginnings_are_cached[falcon_h1-v2_async",
        S: "test_recurrent.py::TestRecurrent::test_draft_lengths_that_change_at_every_step",
    },
    "recurrent layers with prefix caching": {
        T: NONE,
        **vllm("test_recurrent.py::TestRecurrent::test_prompts_whose_beginnings_are_cached[falcon_h1-{v}", "v2_async"),
        S: "test_recurrent.py::TestRecurrent::test_prompts_whose_beginnings_are_cached",
    },
    "tensor parallelism, 2 ranks": {
        T: NONE,
        V1: "test_tensor_parallel.py::test_v1_drafts_on_rank_0_alone_and_the_text_is_right",
        V2: "test_tensor_parallel.py::test_v2_a_proposer_that_raises_on_rank_0_costs_drafts_on_both",
        S: "test_ranks.py::test_tensor_parallel_ranks_verify_what_rank_0_drafts",
    },
    "data parallelism, 2 ranks of a dense model": {
        T: NONE,
        **vllm("test_data_parallel.py::test_both_ranks_draft_and_the_text_is_right[{v}"),
        S: "test_ranks.py::test_data_parallel_ranks_draft_for_themselves",
    },
    "data-parallel attention": {
        T: NONE,
        S: f"{REFUSED}test_registration.py::test_what_cannot_be_served_ends_the_start[given3",
    },
    "pipeline parallelism": {
        T: NONE,
        V1: f"{REFUSED}test_doctor.py::test_what_cannot_be_served_is_refused_by_name[pipeline",
        V2: f"{REFUSED}test_doctor.py::test_what_cannot_be_served_is_refused_by_name[pipeline",
        S: f"{REFUSED}test_registration.py::test_what_cannot_be_served_ends_the_start[given1",
    },
    "prefill and decode on separate servers": {
        T: NONE,
        **vllm("test_kv_transfer.py::test_prompts_that_another_server_prefilled[{v}"),
        S: f"{REFUSED}test_registration.py::test_what_cannot_be_served_ends_the_start[given2",
    },
    "offload of the key-value cache": {
        T: NONE,
        **vllm("test_kv_transfer.py::test_blocks_that_were_offloaded[{v}"),
        S: "test_hierarchical_cache.py::",
    },
    "images": {
        T: f"{REFUSED}test_custom_generate.py::test_pictures_are_refused",
        **vllm("test_suite.py::TestPictures::test_answers_are_the_models_and_pictures_are_not_drafted[{v}"),
        S: "test_suite.py::TestPictures::",
    },
}
"""By feature and engine: the beginning of the ids of the tests that hold it.  An engine left out is untested."""

PROPOSERS: dict[str, Cells] = {
    "lookup on the host (`ngram`, `retrieval`)": {**dict.fromkeys(ENGINES, "test_same_drafts.py::")},
    "trees": {T: NONE, V1: NONE, V2: NONE, S: "test_greedy.py::"},
    "on the device": {
        T: "test_greedy.py::",
        V1: "test_greedy.py::test_all_proposers_in_one_batch[v1",
        V2: "test_device_kernels.py::",
        S: "test_greedy.py::",
    },
    "a draft model with its distribution (`crosstok`)": {
        T: "test_crosstok_distribution.py::",
        **vllm("test_crosstok.py::test_sampled[{v}", "v2_async"),
        S: "test_crosstok.py::test_sampled",
    },
    "lookup beside a draft model (`hybrid`)": {
        T: "test_hybrid.py::",
        **vllm("test_crosstok.py::test_greedy[{v}-with lookup", "v2_async"),
        S: "test_crosstok.py::test_greedy_with_lookup",
    },
    "the engine's own drafter": {T: NONE, **dict.fromkeys((V1, V2, S), "test_engine_drafts.py::")},
    "lookup after the engine's own drafter (`hybrid`)": {
        T: NONE,
        **vllm("test_extended.py::test_a_draft_models_cache_stays_in_step_and_lookup_goes_on[{v}"),
        S: "test_engine_drafts.py::",
    },
    "one that raises, hangs or drafts garbage": {
        T: "test_requests.py::",
        **vllm("test_suite.py::TestContainment::test_every_request_gets_its_text[{v}"),
        S: "test_suite.py::TestContainment::",
    },
}
"""By kind of proposer and engine, as in `FEATURES`."""


def evidence(engine: str, cell: str) -> str:
    """Return the beginning of the ids of a cell's tests."""
    return f"{SUITES[engine]}/{cell.removeprefix(REFUSED)}"


def cells() -> list[tuple[str, str, str]]:
    """Return (row, engine, cell) of all cells that name tests."""
    return [
        (row, engine, cell)
        for table in (FEATURES, PROPOSERS)
        for row, found in table.items()
        for engine, cell in found.items()
        if cell != NONE
    ]


def missing_cells(suite: str, passed: Iterable[str], slow: Iterable[str]) -> list[str]:
    """Return the cells of a suite for which no test passed, without those whose tests are all slow ones.

    Args:
        suite: folder of the tests that have run.
        passed: ids of the tests that passed.
        slow: ids of the tests that were left out because they are slow.
    """
    ran = list(passed)
    left_out = list(slow)
    return [
        f"{row}, {engine}: {cell}"
        for row, engine, cell in cells()
        if SUITES[engine] == suite and not any(name.startswith(evidence(engine, cell)) for name in (*ran, *left_out))
    ]


def older(reports: Path) -> dict[str, str]:
    """Return what ran on each older version, by the name of its requirements.

    Args:
        reports: the folder of pytest's reports, in JUnit's format.

    Raises:
        SystemExit: a version was not run, or tests failed there.
    """
    found = {}
    for name in sorted(path.stem for path in VERSIONS.glob("*.txt")):
        file = reports / f"{name}.xml"
        if not file.is_file():
            raise SystemExit(f"{file}: no report; run make test-versions first")
        suite = ElementTree.parse(file).getroot()[0]
        tests, failed, skipped = (
            sum(int(suite.attrib[key]) for key in keys) for keys in (["tests"], ["failures", "errors"], ["skipped"])
        )
        if failed:
            raise SystemExit(f"{file}: {failed} of {tests} tests failed")
        minutes = float(suite.attrib["time"]) / 60
        found[name] = f"{tests - skipped} passed, {skipped} skipped in {minutes:.1f} minutes"
    return found


def render(records: Mapping[str, Mapping[str, list[str]]], versions: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        records: by suite, the ids under "passed" and "slow" of its newest run.
        versions: what `older` returns.
    """

    def shown(engine: str, cell: str | None) -> str:
        if cell is None:
            return "untested"
        if cell == NONE:
            return ""
        record = records[SUITES[engine]]
        start = evidence(engine, cell)
        file = start.partition("::")[0]
        word = "refused" if cell.startswith(REFUSED) else "tested"
        if not any(name.startswith(start) for name in record["passed"]):
            word += ", slow"
        return f"[{word}](../{file})"

    def table(title: str, rows: Mapping[str, Cells]) -> str:
        lines = [f"| {title} | {' | '.join(ENGINES)} |", "|---" * (len(ENGINES) + 1) + "|"]
        for row, found in rows.items():
            lines.append(f"| {row} | {' | '.join(shown(engine, found.get(engine)) for engine in ENGINES)} |")
        return "\n".join(lines)

    ran = "\n".join(f"| {name.replace('-', ' ')} | {what} |" for name, what in versions.items())
    return _PAGE.format(features=table("feature", FEATURES), proposers=table("proposer", PROPOSERS), versions=ran)


_PAGE = """# Compatibility

What the tests run on the real engines, on CPUs: transformers 5.24.0, vLLM 0.32.0 (V2 in Triton's interpreter, mostly
with async scheduling) and SGLang 0.5.23 (overlapped; its kernels by stand-ins in plain torch). Each word links to its
tests. `python -m tests.compatibility` writes this page from a [table](../tests/compatibility.py) and what the suites
recorded when they ran.

- **tested**: `make test` compares with the engine without speculation, or with exact probabilities.
- **tested, slow**: only `make test-all` does.
- **refused**: start-up or the request is refused by name, and a test shows it.
- **untested**: it may work; [`specplug audit`](audit.md) tells on your server.
- empty: the engine has no such feature, or not with speculation.

{features}

{proposers}

[serving.md](serving.md#features-and-limits) has the limits of each engine in words.

## Other versions

`make test-versions` runs the tests of features on the oldest supported versions:

| version | tests |
|---|---|
{versions}
| vLLM 0.33 | not run: it has no build for CPUs. `make test` imports it and finds [every seam](upgrading.md) |

Versions of transformers between the oldest and the newest were not run.
"""


def main() -> None:
    """Write the page from the records of all suites."""
    records = {}
    for suite in dict.fromkeys(SUITES.values()):
        file = RECORDS / f"{Path(suite).name}.json"
        if not file.is_file():
            raise SystemExit(f"{file}: no record; run the whole suite {suite} first")
        records[suite] = json.loads(file.read_text())
    PAGE.write_text(render(records, older(RECORDS / "versions")))


if __name__ == "__main__":
    main()
