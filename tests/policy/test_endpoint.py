"""The endpoint policy against a real HTTP server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from cudaagent.errors import InfrastructureError, UserError
from cudaagent.policy import byte_level
from cudaagent.policy.base import GenerationRequest, Message
from cudaagent.policy.endpoint import EndpointPolicy, Patience

Reply = tuple[int, dict[str, Any] | str, dict[str, str]]
QUICK = Patience(deadline_s=20, attempts=3, first_pause_s=0.001)


class Server:
    """Answers POSTs by ``reply(body, number)`` and keeps what it was asked."""

    def __init__(self) -> None:
        self.reply: Callable[[dict[str, Any], int], Reply] = lambda body, number: say("hello")
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                outer.headers.append(dict(self.headers))
                outer.paths.append(self.path)
                status, answer, headers = outer.reply(body, len(outer.bodies))
                data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def say(text: str | None, finish: str = "stop") -> Reply:
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"message": message, "finish_reason": finish}]}, {}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    running = Server()
    yield running
    running.close()


def ask(policy: EndpointPolicy, *prompts: str, limit: int = 100) -> list[Any]:
    requests = [
        GenerationRequest(policy.start([Message("user", prompt)]), limit, seed=5)
        for prompt in prompts
    ]
    return policy.generate(requests)


def test_the_conversation_arrives_as_messages(server: Server) -> None:
    policy = EndpointPolicy.parse(f"org/model@v2@{server.url}/")
    ids = policy.start([Message("system", "s"), Message("user", "ü")])
    (first,) = policy.generate([GenerationRequest(ids, 100, seed=5)])
    ids = np.concatenate([ids, first.token_ids, policy.observe("result")])
    (second,) = policy.generate([GenerationRequest(ids, 80, seed=6)])

    assert (first.text, first.finish_reason, second.text) == ("hello", "stop", "hello")
    assert first.token_ids[-1] == byte_level.END
    assert not first.logprobs.any()
    assert server.paths == ["/v1/chat/completions"] * 2
    assert server.headers[0]["Authorization"] == "Bearer key-1"
    assert server.bodies[1] == {
        "model": "org/model@v2",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "ü"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "result"},
        ],
        "seed": 6,
        "max_tokens": 80,
    }


def test_answers_keep_the_order_of_the_requests(server: Server) -> None:
    server.reply = lambda body, number: say("re " + body["messages"][0]["content"])
    prompts = [str(n) for n in range(12)]
    answers = ask(EndpointPolicy("m", server.url), *prompts)
    assert [answer.text for answer in answers] == [f"re {p}" for p in prompts]


def test_a_cut_answer_is_a_cut_turn(server: Server) -> None:
    policy = EndpointPolicy("m", server.url)
    server.reply = lambda body, number: say("abc", "length")
    (by_server,) = ask(policy, "x")
    server.reply = lambda body, number: say("abcdef")
    (by_bytes,) = ask(policy, "x", limit=3)
    server.reply = lambda body, number: say(None)
    (empty,) = ask(policy, "x")

    assert (by_server.finish_reason, by_server.text) == ("length", "abc")
    assert (by_bytes.finish_reason, by_bytes.text) == ("length", "abc")
    assert (empty.finish_reason, empty.text, len(empty.token_ids)) == ("stop", "", 1)


@pytest.mark.parametrize("trouble", [(429, "slow down", {"Retry-After": "0"}), (503, "x", {})])
def test_a_busy_server_is_asked_again(server: Server, trouble: Reply) -> None:
    server.reply = lambda body, number: trouble if number < 3 else say("hello")
    (answer,) = ask(EndpointPolicy("m", server.url, patience=QUICK), "x")
    assert answer.text == "hello"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("answer", ["not json", {"choices": []}, {"no": 1}, "[]"])
def test_nonsense_is_given_up_after_as_many_attempts(
    server: Server, answer: dict[str, Any] | str
) -> None:
    server.reply = lambda body, number: (200, answer, {})
    with pytest.raises(InfrastructureError, match="after 3 attempts"):
        ask(EndpointPolicy("m", server.url, patience=QUICK), "x")
    assert len(server.bodies) == 3


def test_nobody_there_is_a_fault_of_the_system(server: Server) -> None:
    gone = Server()
    gone.close()
    with pytest.raises(InfrastructureError, match="did not answer"):
        ask(EndpointPolicy("m", gone.url, patience=QUICK), "x")


@pytest.mark.parametrize(
    ("status", "words"), [(401, "OPENAI_API_KEY"), (404, "no model m"), (400, "too long by far")]
)
def test_a_refusal_is_the_users_to_mend(server: Server, status: int, words: str) -> None:
    server.reply = lambda body, number: (status, "too long\nby far", {})
    with pytest.raises(UserError) as caught:
        ask(EndpointPolicy("m", server.url, patience=QUICK), "x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "key-1" not in str(caught.value)
    assert len(server.bodies) == 1


def test_the_newer_name_of_the_limit_is_learned(server: Server) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        if "max_tokens" in body:
            return 400, "use 'max_completion_tokens' instead", {}
        return say("hello")

    server.reply = reply
    policy = EndpointPolicy("m", server.url, patience=QUICK)
    ask(policy, "x")
    ask(policy, "x")
    assert ["max_tokens" in body for body in server.bodies] == [True, False, False]


def test_a_redirect_never_carries_the_key_away(server: Server) -> None:
    elsewhere = Server()
    try:
        server.reply = lambda body, number: (307, "", {"Location": elsewhere.url + "/x"})
        with pytest.raises(UserError, match="HTTP 307"):
            ask(EndpointPolicy("m", server.url, patience=QUICK), "x")
        assert elsewhere.paths == []
    finally:
        elsewhere.close()
