"""Clients that others wrote: OpenAI's SDK, the guides' curl and Python, and our own audit."""

import ast
import shlex
import shutil
import subprocess
from pathlib import Path

import openai
import pytest

from specjax.audit.client import Server
from specjax.audit.server import Plan, collect, judge

GUIDES = Path(__file__).parents[3] / "shared" / "guides"
WORDS = "import os\nimport sys\nimport "

CURL = """
curl --request POST --url http://0.0.0.0:18080/v1/chat/completions
--header 'content-type: application/json' --data '{ "model": "${base_model}", "messages":
[ { "role": "user", "content": "现任美国总统是谁?" } ], "max_tokens": 128, "top_k": -1,
"top_p": 0.1, "temperature": 0, "stream": false, "repetition_penalty": 1.0 } '
"""
SNIPPET = """
from openai import OpenAI
openai_api_key = "EMPTY"
openai_api_base = "http://localhost:8000/v1"
client = OpenAI(
    api_key=openai_api_key,
    base_url=openai_api_base,
)
models = client.models.list()
model = models.data[0].id
stream = False
completion = client.completions.create(
    model=model, prompt="The future of AI is", echo=False, n=1, stream=stream,
)
print("Completion results:")
if stream:
    for c in completion:
        print(c)
else:
    print(completion)
"""


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


def test_the_sdk_completes_and_streams(client, offline):
    (expected,) = offline([WORDS], max_tokens=20)
    asked = {"model": "tiny", "prompt": WORDS, "max_tokens": 20, "temperature": 0}
    answer = client.completions.create(**asked, logprobs=1)
    assert answer.choices[0].text == expected.text
    assert len(answer.choices[0].logprobs.token_logprobs) == 20
    assert answer.usage.completion_tokens == 20
    speculation = answer.metrics["speculative_decoding"]
    assert speculation["num_draft_tokens"] == expected.spec_decode_metrics.num_draft_tokens
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_sdk_chats_and_streams(client):
    turns = [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]
    asked = {"model": "alias", "messages": turns, "max_completion_tokens": 9, "seed": 3}
    asked |= {"logprobs": True, "top_logprobs": 2, "extra_body": {"top_k": 50}}
    answer = client.chat.completions.create(**asked)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options=options)
    said = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert said == choice.message.content
    assert last.usage == answer.usage
    helper = client.chat.completions.with_raw_response.create(**asked)
    assert helper.headers["content-type"] == "application/json"


def test_the_sdk_knows_our_errors(client):
    asked = {"model": "tiny", "prompt": "x"}
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(**{**asked, "model": "gpt"})
    with pytest.raises(openai.BadRequestError, match="top_p must be in") as caught:
        client.completions.create(**asked, top_p=7)
    assert caught.value.type == "BadRequestError"
    with pytest.raises(openai.BadRequestError, match="suffix is not supported"):
        client.completions.create(**asked, suffix="y")


def run_curl(source: str, url: str) -> str:
    """Run a curl command with our names in it."""
    source = source.replace("http://0.0.0.0:18080", url).replace("${base_model}", "tiny")
    words = shlex.split(source.replace("\\ ", " ").replace("128", "32"))
    done = subprocess.run([*words, "--silent"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(source: str, url: str) -> dict:
    """Run a client with our names in it; return what it leaves."""
    left: dict = {}
    source = source.replace("http://localhost:8000", url)
    exec(compile(source, "snippet", "exec"), left)
    left["client"].close()
    return left


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
needs_guides = pytest.mark.skipif(
    not GUIDES.is_dir(), reason="the guides are read from ../shared/guides, which is not here"
)


@needs_curl
def test_a_curl_like_the_guides_is_answered(url):
    assert '"object":"chat.completion"' in run_curl(CURL, url)


@needs_curl
@needs_guides
def test_the_guides_own_curl_is_answered(url):
    text = (GUIDES / "1_ngram_on_ascend.txt").read_text(encoding="utf-8")
    source = text[text.index("curl --request POST") :]
    source = source[: source.index("} '") + 3]
    assert '"object":"chat.completion"' in run_curl(source, url)


def test_a_client_like_the_guides_runs(url, capsys):
    assert run_python(SNIPPET, url)["completion"].choices[0].text
    assert "Completion(id='cmpl-" in capsys.readouterr().out


@needs_guides
def test_the_guides_own_client_runs(url):
    """Up to where the guide lost the indentation of its last lines."""
    text = (GUIDES / "5_legacy_guide.txt").read_text(encoding="utf-8")
    lines = text[text.index("from openai import OpenAI") :].splitlines()
    best = ""
    for count in range(1, 40):
        source = "\n".join(lines[:count])
        try:
            ast.parse(source)
        except SyntaxError:
            continue
        best = source
    left = run_python(best, url)
    assert left["model"] == "tiny"
    assert left["completion"].choices[0].text


def test_our_own_audit_passes_on_our_own_server(url):
    plan = Plan(prompts=(WORDS,), temperature=1.0, tokens=2, tv=0.3, cells=6, batch=32)
    report = judge(collect(Server(url, "tiny"), None, plan))
    assert report.passed
    assert report.warnings == ()
