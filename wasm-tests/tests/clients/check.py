"""What the official clients make of a refusal: they parse it, and come back
when it says. Called by clients.rs with the gateway's URL; prints one JSON line."""

import json
import sys
import time

import anthropic
import openai

url = sys.argv[1]
chat = [{"role": "user", "content": "hi"}]


def ask_openai(retries):
    client = openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=retries)
    return client.chat.completions.create(model="m", messages=chat, max_tokens=40)


def ask_anthropic(retries):
    client = anthropic.Anthropic(base_url=url, api_key="claude", max_retries=retries)
    return client.messages.create(model="m", messages=chat, max_tokens=40)


def drive(ask, refusal):
    """Uses the limit up, is refused, and waits as told."""
    tokens = ask(0).usage
    try:
        ask(0)
        raise SystemExit("the second request was not refused")
    except refusal as error:
        told = {
            "status": error.status_code,
            "retry_after": error.response.headers["retry-after"],
            "remaining": error.response.headers["x-ratelimit-remaining-tokens"],
            "body": error.body,
            "code": getattr(error, "code", None),
        }
    start = time.monotonic()
    ask(3)
    return {"told": told, "waited": time.monotonic() - start, "usage": tokens.to_dict()}


print(json.dumps({
    "openai": drive(ask_openai, openai.RateLimitError),
    "anthropic": drive(ask_anthropic, anthropic.RateLimitError),
}))
