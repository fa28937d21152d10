"""Example of SGLang's offline `Engine` with specplug: two requests, one of them with per-request fields.

.venv-sglang/bin/python examples/sglang_offline.py [MODEL]
"""

import json
import os
import sys

import sglang_stand_ins

from specplug.tools.demo import model_path


def main(model: str) -> None:
    """Serve both requests and print speculation statistics."""
    sglang_stand_ins.use()  # without a GPU only
    os.environ.setdefault("SPECPLUG_CONFIG", json.dumps({"proposer": "ngram", "policy": "batch"}))
    import sglang

    from specplug_sglang import status

    engine = sglang.Engine(
        model_path=model,
        speculative_algorithm="SPECPLUG",
        speculative_num_draft_tokens=16,  # at most 15 drafts, and the token that they follow
        max_running_requests=8,
        context_length=1024,
        log_level="warning",
        **sglang_stand_ins.arguments(),
    )
    code = "def read(path, mode):\n    with open(path, mode) as file:\n        text = file.read()\n    return text"
    change = "def read(path, mode):\n    with open(path, flags) as file:\n        text = file.read()"
    record = '<|document|>name: "read"\nmodule: "files"\nkind: "function"\nline: 12'
    form = '<|json|>{"name": "read", "kind": null, "line": null, "module": null}<|answer|>'
    earlier = '{\n  "name": "read",\n  "kind": "function",\n  "line": 7,\n  "module": "files"\n}'
    prompts = [f"<|document|>{code}<|edit|>{change}<|answer|>", record + form]
    greedy = {"temperature": 0, "max_new_tokens": 80}
    # What the answer was before the function moved: text that it may copy from, and that the prompt does not hold.
    fields = {"references": [earlier], "num_speculative_tokens": 6}
    for answer in engine.generate(prompts, [greedy, {**greedy, "custom_params": {"specplug": fields}}]):
        print(answer["text"], end="\n---\n")
    ((worker,),) = (each["workers"] for each in status.read(engine))
    total = worker["metrics"]["total"]
    print(f"{total['emitted']} tokens in {total['target_steps']} steps, drafts from {worker['sources']}")
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(model_path("tiny")))
