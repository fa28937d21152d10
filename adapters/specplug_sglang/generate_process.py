"""The process that holds one `sglang.Engine` for the command line: ``python -m specplug_sglang.generate_process FD``.

FD is one end of a pipe.  The process receives "start", "tokenize", "generate", "stop" and "status", and sends "ready",
"tokens", "update", "done" and "status", each with a value.  It sends "refused" for an invalid request and "raised" for
any other error.  It ends when the other side closes the pipe.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from specplug.errors import RequestError, describe
from specplug_sglang.config import ALGORITHM

MOST_CACHED_ON_A_CPU = 1 << 16
"""KV-cache tokens on a CPU; SGLang's default would take most of the machine's memory."""


class _Failure(Exception):
    """An error to report to the other side."""

    def __init__(self, what: str, found: object) -> None:
        super().__init__(what)
        self.report = {"what": what, "found": str(found).strip().splitlines()[0] if str(found).strip() else repr(found)}


def main(connection: Connection) -> None:
    """Start an engine and serve it until the other side closes the pipe."""
    engine: Any = None
    try:
        while True:
            what, value = connection.recv()
            try:
                if what == "start":
                    engine = _start(**value)
                    connection.send(("ready", _describe(engine)))
                elif what == "generate":
                    _generate(engine, value, connection)
                elif what == "tokenize":
                    connection.send(("tokens", engine.tokenizer_manager.tokenizer.encode(value)))
                elif what == "status":
                    connection.send(("status", _status(engine)))
            except _Failure as failure:
                connection.send(("raised", failure.report))
            except RequestError as error:
                connection.send(("refused", str(error)))
            except Exception as error:
                report = {"what": f"SGLang failed to {what}", "found": describe(error)}
                connection.send(("raised", report))
    except (EOFError, OSError):
        pass  # the other side has closed the pipe
    finally:
        if engine is not None:
            engine.shutdown()


def _start(
    *,
    model: str,
    device: str | None,
    dtype: str | None,
    draft_length: int,
    seed: int | None,
    max_num_seqs: int,
    baseline: bool,
) -> Any:
    import torch

    is_cpu = device == "cpu" or (device is None and not torch.accelerator.is_available())
    if is_cpu:
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    try:
        from sglang.srt.entrypoints.engine import Engine
    except ImportError as error:
        what = "SGLang does not run on this machine"
        if is_cpu:
            what += ", which has no accelerator that torch finds"
        raise _Failure(what, describe(error)) from error
    from specplug_sglang import seams

    seams.require("cli")
    more: dict[str, Any] = {}
    if not baseline:
        more = {"speculative_algorithm": ALGORITHM, "speculative_num_draft_tokens": max(1, draft_length) + 1}
    if is_cpu:
        # SGLang's default fraction would leave gigabytes unused, and SGLang exits if they are not free.
        small = {"max_total_tokens": MOST_CACHED_ON_A_CPU, "mem_fraction_static": 0.99}
        more |= {"device": "cpu", "disable_cuda_graph": True, **small}
    elif device is not None:
        more |= {"device": device}
    try:
        return Engine(
            model_path=model,
            dtype=dtype or ("float32" if is_cpu else "auto"),
            max_running_requests=max_num_seqs,
            random_seed=seed,
            **more,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _Failure(f"SGLang does not start on model {model!r}", error) from error


def _describe(engine: Any) -> dict[str, str]:
    from sglang.version import __version__

    info = engine.get_server_info()
    return {"dtype": str(info["dtype"]), "device": str(info["device"]), "version": str(__version__)}


def _status(engine: Any) -> Any:
    from specplug_sglang import status

    return status.read(engine)


def _generate(engine: Any, requests: list[dict[str, Any]], connection: Connection) -> None:
    """Serve requests until they have ended, or the other side sends "stop" or closes the pipe."""
    names = [f"specplug-{os.getpid()}-{number}" for number in range(len(requests))]
    outputs = engine.generate(
        **_prompts([request["prompt"] for request in requests]),
        sampling_params=[_translate(request) for request in requests],
        rid=names,
        return_logprob=[request["top_logprobs"] > 0 for request in requests],
        top_logprobs_num=[request["top_logprobs"] for request in requests],
        stream=True,
    )
    stopped = False
    for update in _new_parts(outputs, len(requests)):
        if stopped:
            continue  # drop updates while the aborted requests end
        connection.send(("update", update))
        if connection.poll():  # only "stop" can arrive here
            stopped = True
            for name in names:
                engine.tokenizer_manager.abort_request(rid=name)
    connection.send(("done", None))


def _new_parts(outputs: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield the new part of each output; SGLang's outputs are cumulative."""
    texts, ids = [0] * count, [0] * count
    for output in outputs:
        index, reason = output["index"], output["meta_info"]["finish_reason"]
        text, token_ids = output["text"], output["output_ids"]
        yield {
            "index": index,
            "text": text[texts[index] :],
            "token_ids": list(token_ids[ids[index] :]),
            "finish_reason": None if reason is None else reason["type"],
            "top_logprobs": _top_logprobs(output["meta_info"])[ids[index] :],
        }
        texts[index], ids[index] = len(text), len(token_ids)


def _top_logprobs(about: dict[str, Any]) -> list[dict[int, float]]:
    """Return the log-probabilities of each output token and of the likeliest ones beside it, by token id."""
    tokens, tops = about.get("output_token_logprobs") or (), about.get("output_top_logprobs") or ()
    return [{token: value for value, token, _ in (*(top or ()), own)} for own, top in zip(tokens, tops, strict=True)]


def _prompts(prompts: list[Any]) -> dict[str, Any]:
    """Return the prompts, all texts or all token ids, as SGLang takes them."""
    is_text = all(isinstance(prompt, str) for prompt in prompts)
    return {"prompt": prompts} if is_text else {"input_ids": [list(prompt) for prompt in prompts]}


def _translate(request: dict[str, Any]) -> dict[str, Any]:
    """Return SGLang's sampling parameters."""
    params = {
        "max_new_tokens": request["max_tokens"],
        "temperature": request["temperature"],
        "top_k": request["top_k"] or -1,
        "top_p": request["top_p"],
        "stop": list(request["stop"]),
    }
    if request["seed"] is not None:
        params["sampling_seed"] = request["seed"]
    if request["json_schema"] is not None:
        params["json_schema"] = json.dumps(request["json_schema"])
    if request["specplug"]:
        params["custom_params"] = {"specplug": dict(request["specplug"])}
    return params


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
