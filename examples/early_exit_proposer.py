"""Self-drafting by early exit: the target's first layers, with its own norm and head, draft for the whole model.

python examples/early_exit_proposer.py [MODEL]

An early exit needs no second model, but drafts well only where the model was trained for it (LayerSkip, arXiv
2404.16710).  With other models acceptance is low: so it is with the shipped one after its first layer.  Its training
began with two layers that copy, so an exit after the second one is good for edits; expect this of no other model.  The
proposer shows how one that runs a model is written, not how to be fast: it computes the whole text anew at each step,
because proposers have no access to the target's cache.
"""

import sys

import torch
from pydantic import BaseModel, Field
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import specplug
from specplug.draft_model.cache import cache_argument
from specplug.plugins.registry import Owner, Registry
from specplug.tools.demo import model_path
from specplug.tools.demo.tasks import make_tasks
from specplug_transformers import Engine, GenerateRequest, SamplingParams


class EarlyExitSettings(BaseModel):
    """The exit."""

    layers: int = Field(default=2, ge=1, description="how many of the target's layers draft")


class EarlyExit(specplug.HostProposer):
    """Drafts greedily with the first layers of the target's checkpoint."""

    def __init__(self, context: specplug.PluginContext) -> None:
        super().__init__(context)
        if context.target_path is None:
            raise specplug.PluginError.build("the target's path is not known", who="proposer 'early-exit'")
        num_layers = (context.options or EarlyExitSettings()).layers
        self.model = AutoModelForCausalLM.from_pretrained(context.target_path, dtype=torch.float32).eval()
        self.model.model.layers = self.model.model.layers[:num_layers]
        self.model.config.num_hidden_layers = len(self.model.model.layers)
        self.cache = cache_argument(self.model)

    @torch.inference_mode()
    def draft(self, tokens, limit, request):
        """Draft until the limit; a token's confidence is its probability at the exit."""
        cache, new = DynamicCache(config=self.model.config), torch.from_numpy(tokens.astype("int64"))[None]
        drafted, confidence = [], []
        for _ in range(limit):
            logits = self.model(new, **{self.cache: cache}, use_cache=True, logits_to_keep=1).logits[:, -1]
            probability, new = logits.softmax(-1).max(-1, keepdim=True)
            drafted.append(int(new))
            confidence.append(float(probability))
        return drafted, confidence


@specplug.hookimpl
def specplug_register_proposers(register):
    """Register the proposer, as a package's entry point would."""
    caps = specplug.ProposerCaps(needs_host=True)
    summary = "drafts with the target's first layers"
    register(
        specplug.ProposerSpec(
            name="early-exit", factory=EarlyExit, summary=summary, options=EarlyExitSettings, caps=caps
        )
    )


def main() -> None:
    """Generate without drafts, then with exits after each number of layers, and compare."""
    name = sys.argv[1] if len(sys.argv) > 1 else str(model_path("tiny"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name, dtype="float32"), AutoTokenizer.from_pretrained(name)
    registry = Registry.discover()
    registry.add(sys.modules[__name__], Owner("early-exit", "examples", "0"))

    def generate(requests, settings):
        engine = Engine(model, tokenizer, settings=settings, registry=registry)
        answers = [answer.token_ids for answer in engine.generate(requests)]
        counts = engine.metrics.snapshot().total
        engine.close()
        return answers, counts

    drafting = {"proposer": "early-exit", "policy": "fixed", "num_speculative_tokens": 4}
    drafting["faults"] = {"host_deadline_ms": None}
    for kind in ("edit", "code"):
        tasks, params = make_tasks(kind, "held-out", 2, max_chars=300), SamplingParams(max_tokens=32)
        requests = [GenerateRequest(prompt=task.prompt, params=params) for task in tasks]
        plain, _ = generate(requests, {"policy": "none"})
        for layers in range(1, model.config.num_hidden_layers):
            found, counts = generate(requests, drafting | {"options": {"early-exit": {"layers": layers}}})
            accepted = f"{counts.accepted} of {counts.tested} tested draft tokens accepted"
            same = "equal" if found == plain else "DIFFERENT"
            print(f"{kind}, {layers} layers: {counts.tau:.2f} tokens per step, {accepted}, outputs {same}")


if __name__ == "__main__":
    main()
