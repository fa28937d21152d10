"""Runs functions of the tests in SGLang's scheduler process, by way of the engine's `collective_rpc`.

Between two steps, so that what they see is at rest.  The answer is the message that an RPC returns.
"""

from __future__ import annotations

import json
from typing import Any

TARGET = "sglang.srt.managers.scheduler.Scheduler.handle_rpc_request"
METHOD = "specplug_test_call"


def handle_rpc_request(original: Any, self: Any, request: Any) -> Any:
    """Stand around the scheduler's `handle_rpc_request`; the parameters are "function", as `find` takes it, and its
    "arguments"."""
    if request.method != METHOD:
        return original(self, request)
    from sglang.srt.managers.io_struct import RpcReqOutput

    from tests.engines.host import find, message_of

    function, arguments = request.parameters["function"], request.parameters["arguments"]
    message = message_of(lambda: find(function)(self, **arguments))
    return RpcReqOutput(success=True, message=json.dumps(message))
