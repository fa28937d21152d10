from tests.engines.vllm import inside
from tests.engines.vllm.test_width import CROWD, REJECTED, WIDE, cached_but_for_one_token, crowd, seen
from tests.engines.vllm import steps
def mutant(llm, gamma):
    s = inside.scheduler(llm)
    s._width = lambda: 31
    try:
        return cached_but_for_one_token(llm, gamma)
    finally:
        del s._width
def test_mutant(engine):
    wide = engine("v2", REJECTED, width=WIDE, asynchronous=True, name="crowd", **CROWD)
    for g in (0, 2):
        run = wide.call(mutant, gamma=g)
        (first,) = [step for step in run["record"] if "again" in step["prefill"]]
        print("MUTANT", g, first)
