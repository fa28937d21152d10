"""Limits on the reference tokens that the requests of one client, and of all, hold in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from specplug.errors import RequestError
from specplug.settings.model import Limits


class BusyError(RequestError):
    """A client or the server holds as many reference tokens as it may; engines answer 429."""


class Quota:
    """Counts the reference tokens of requests that wait or run, in one process that serves HTTP.

    Args:
        limits: `max_client_reference_tokens` and `max_server_reference_tokens`.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_client_reference_tokens
        self._most_of_all = limits.max_server_reference_tokens
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Tokens that all clients hold."""
        return self._held.total()

    def hold(self, client: str, tokens: int) -> Callable[[], None]:
        """Count tokens of a client; return a function that stops counting them, once however often it is called.

        Raises:
            BusyError: the client or the server would hold too many.
        """
        self._check("of this client", "max_client_reference_tokens", self._held[client] + tokens, self._most)
        self._check("of all clients", "max_server_reference_tokens", self.held + tokens, self._most_of_all)
        self._held[client] += tokens
        left = [tokens]

        def release() -> None:
            if left:
                self._held[client] -= left.pop()
                if self._held[client] <= 0:
                    del self._held[client]

        return release

    @staticmethod
    def _check(whose: str, limit: str, found: int, most: int) -> None:
        if found > most:
            raise BusyError.build(
                f"requests {whose} hold too many reference tokens",
                who="request fields",
                found=f"{found} with this request, each of its prompts and samples counted",
                expected=f"at most {most}, limits.{limit}",
                remedy="Send it again when others have finished, with smaller references, or with fewer samples",
            )
