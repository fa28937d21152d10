import pytest
from tests.engines.vllm import inside
from tests.engines.vllm.test_stock import REQUESTS
@pytest.mark.parametrize("i", range(len(REQUESTS)))
def test_x(stock_v2, i):
    p, g = REQUESTS[i]
    stock_v2.call(inside.generate, prompts=[p], params=g)
