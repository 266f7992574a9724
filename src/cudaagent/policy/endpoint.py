"""``openai:MODEL@BASE_URL``: any server that speaks the chat-completions protocol.

Standard library only. Ids are byte-level and log-probabilities zero, since a server tells neither
its ids nor, in general, its log-probabilities: such trajectories can be evaluated, not trained on.
Token limits count bytes here, so a turn or a context is about a quarter as long as with a
tokenizer. Requests of a batch run side by side. Not covered: tool-call formats of a server's own;
the agent's calls are plain text.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudaagent.errors import InfrastructureError, UserError
from cudaagent.policy import byte_level
from cudaagent.policy.base import Generation, GenerationRequest, Message

KEY_VARIABLE = "OPENAI_API_KEY"
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_REPLY_BYTES = 32 << 20
_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried, in seconds."""

    deadline_s: float = 600.0
    attempts: int = 6
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0


class EndpointPolicy:
    """Ask ``base_url`` for the next turn of each conversation."""

    trainable = False

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        temperature: float | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._model = model
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._temperature = temperature
        self._patience = patience or Patience()
        self._key = os.environ.get(KEY_VARIABLE, "")
        self._limit_name = "max_tokens"
        if not self._key and self._url.startswith("https:"):
            raise UserError(
                f"openai:{model}@{base_url} needs a key; set {KEY_VARIABLE} (to any word if the "
                "server asks for none)"
            )
        self._opener = urllib.request.build_opener(_NoRedirect())

    @classmethod
    def parse(cls, spec: str, *, temperature: float | None = None) -> EndpointPolicy:
        """From ``MODEL@BASE_URL``.

        Raises:
            UserError: no model, no URL, or no key for an https URL.
        """
        model, separator, rest = spec.partition("@http")
        if not model or not separator or "://" not in separator + rest:
            raise UserError(
                f"openai:{spec} is not of the form openai:MODEL@BASE_URL, for example "
                "openai:my-model@http://localhost:8000/v1"
            )
        return cls(model, "http" + rest, temperature=temperature)

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return byte_level.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        return byte_level.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One turn for each request.

        Raises:
            UserError: the server refuses the key, the model or the request.
            InfrastructureError: it could not be reached within the deadline.
        """
        if not requests:
            return []
        with ThreadPoolExecutor(min(len(requests), _PARALLEL)) as pool:
            return list(pool.map(self._answer, requests))

    def _answer(self, request: GenerationRequest) -> Generation:
        spoken = byte_level.messages(request.token_ids)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": item.role, "content": item.content} for item in spoken],
            "seed": request.seed % (1 << 31),
        }
        if self._temperature is not None:
            body["temperature"] = self._temperature
        choice = self._ask(body, request.max_new_tokens)
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        text = content if isinstance(content, str) else ""
        cut = choice.get("finish_reason") == "length" and bool(text)
        return byte_level.generation(text, request.max_new_tokens, cut=cut)

    def _ask(self, body: dict[str, Any], limit: int) -> dict[str, Any]:
        """The first choice of the server's answer, after as many attempts as patience allows."""
        patience = self._patience
        deadline = time.monotonic() + patience.deadline_s
        pause = patience.first_pause_s
        problem = "no attempt was made"
        for attempt in range(patience.attempts):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                return self._post({**body, self._limit_name: limit}, left)
            except _Refused as refused:
                if refused.wants_completion_limit and self._limit_name == "max_tokens":
                    self._limit_name = "max_completion_tokens"
                    continue
                if refused.status not in _RETRIED:
                    raise UserError(self._explain(refused)) from refused
                problem, wait = str(refused), refused.retry_after_s or pause
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem, wait = f"{type(error).__name__}: {error}", pause
            last = attempt + 1 == patience.attempts
            wait = min(wait, patience.longest_pause_s)
            if last or time.monotonic() + wait > deadline:
                break
            time.sleep(wait)
            pause *= 2
        raise InfrastructureError(
            f"{self._url} did not answer after {patience.attempts} attempts or "
            f"{patience.deadline_s:.0f} s; last: {problem}"
        )

    def _post(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                data = response.read(_REPLY_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(_REPLY_BYTES).decode("utf-8", errors="replace")
                raise _Refused(error.code, text, error.headers.get("Retry-After")) from error
        answer = json.loads(data)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ValueError("the answer has no choices")
        return choices[0]

    def _explain(self, refused: _Refused) -> str:
        reasons = {
            401: f"the key in {KEY_VARIABLE} is not accepted",
            403: f"the key in {KEY_VARIABLE} does not allow this",
            404: f"there is no model {self._model}, or BASE_URL is not the API's root (often /v1)",
        }
        reason = reasons.get(refused.status, "the request is refused")
        return f"{self._url}: {reason} ({refused})"


class _Refused(Exception):
    """An HTTP status that is not success."""

    def __init__(self, status: int, body: str, retry_after: str | None) -> None:
        one_line = " ".join(body.split())[:300]
        super().__init__(f"HTTP {status}: {one_line}")
        self.status = status
        self.wants_completion_limit = status == 400 and "max_completion_tokens" in body
        digits = (retry_after or "").strip()
        self.retry_after_s = float(digits) if digits.isdigit() else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host; it becomes an error."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
