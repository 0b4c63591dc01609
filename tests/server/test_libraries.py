"""Other people's clients get from the server what a plain request gets. `make clients` has all."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from specjax.readers.results import read_result

TURNS = [{"role": "user", "content": "import os"}]
ASKED = {"temperature": 0, "max_tokens": 6}
NODE = os.environ.get("SPECJAX_NODE_MODULES", "node_modules")  # a folder with Node's openai


@pytest.fixture(scope="module")
def expected(url):
    """Return the text of the chat that all clients ask for."""
    body = {"model": "tiny", "messages": TURNS, **ASKED}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    return reply.json()["choices"][0]["message"]["content"]


def run(python: str, url: str, script: str) -> list[str]:
    """Return what a script prints, in a process of its own: these packages bring warnings."""
    environment = {**os.environ, "URL": url, "NO_PROXY": "*", "OPENAI_API_KEY": "EMPTY"}
    done = subprocess.run(
        [python, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


SCRIPTS = {
    "litellm": """
import json, os, litellm
litellm.suppress_debug_info = True
asked = dict(model="hosted_vllm/tiny", api_base=os.environ["URL"] + "/v1", api_key="EMPTY",
             messages=[{"role": "user", "content": "import os"}], temperature=0, max_tokens=6)
whole = litellm.completion(**asked).choices[0].message.content
parts = [c.choices[0].delta.content or "" for c in litellm.completion(**asked, stream=True)]
print(json.dumps([whole, "".join(parts)]))
""",
    "langchain_openai": """
import json, os
from langchain_openai import ChatOpenAI
llm = ChatOpenAI(model="tiny", base_url=os.environ["URL"] + "/v1", api_key="EMPTY", temperature=0,
                 max_tokens=6)
print(json.dumps([llm.invoke("import os").content,
                  "".join(c.content for c in llm.stream("import os"))]))
""",
    "llama_index.llms.openai_like": """
import json, os
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
llm = OpenAILike(model="tiny", api_base=os.environ["URL"] + "/v1", api_key="EMPTY", temperature=0,
                 max_tokens=6, is_chat_model=True)
turns = [ChatMessage(role="user", content="import os")]
whole = llm.chat(turns).message.content
print(json.dumps([whole, "".join(c.delta or "" for c in llm.stream_chat(turns))]))
""",
    "anthropic": """
import anthropic, json, os
client = anthropic.Anthropic(base_url=os.environ["URL"], api_key="EMPTY")
asked = dict(model="tiny", max_tokens=6, messages=[{"role": "user", "content": "import os"}],
             extra_body={"temperature": 0})
whole = client.messages.create(**asked).content[0].text
with client.messages.stream(**asked) as stream:
    print(json.dumps([whole, "".join(stream.text_stream)]))
""",
    "openai": """
import asyncio, json, os, openai
client = openai.AsyncOpenAI(base_url=os.environ["URL"] + "/v1", api_key="EMPTY")
asked = dict(model="tiny", messages=[{"role": "user", "content": "import os"}], temperature=0,
             max_tokens=6)
async def main():
    whole = await client.chat.completions.create(**asked)
    parts = [c.choices[0].delta.content or ""
             async for c in await client.chat.completions.create(**asked, stream=True)]
    print(json.dumps([whole.choices[0].message.content, "".join(parts)]))
asyncio.run(main())
""",
}
PYTHON = os.environ.get("SPECJAX_CLIENTS_PYTHON", "python")  # one that has these packages


def has(package: str) -> bool:
    """Return whether the Python of the clients has a package."""
    found = shutil.which(PYTHON)
    if found is None:
        return False
    script = f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)"
    return subprocess.run([found, "-c", script], capture_output=True).returncode == 0


@pytest.mark.parametrize("package", SCRIPTS)
def test_a_library_gets_the_same_text_whole_and_streamed(url, expected, package):
    if not has(package):
        pytest.skip(f"{package} is not installed")
    assert run(PYTHON, url, SCRIPTS[package]) == [expected, expected]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.skipif(not Path(NODE, "openai").is_dir(), reason=f"no openai in {NODE}")
def test_nodes_client_completes_and_streams(url, expected, tmp_path):
    (tmp_path / "node_modules").symlink_to(Path(NODE).absolute())
    script = tmp_path / "ask.mjs"
    asked = json.dumps({"model": "tiny", "messages": TURNS, **ASKED})
    script.write_text(f"""
import OpenAI from "openai";
const client = new OpenAI({{ baseURL: "{url}/v1", apiKey: "EMPTY" }});
const whole = await client.chat.completions.create({asked});
let text = "";
for await (const c of await client.chat.completions.create({{...{asked}, stream: true}}))
  text += c.choices[0]?.delta?.content ?? "";
console.log(JSON.stringify([whole.choices[0].message.content, text]));
""")
    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [expected, expected]


def test_guidellm_measures(url, pair, tmp_path):
    if not has("guidellm"):
        pytest.skip("guidellm is not installed")
    out = tmp_path / "report.json"
    command = [PYTHON, "-m", "guidellm", "run", "--profile", "kind=synchronous"]
    command += ["--backend", f"kind=openai_http,target={url},model=tiny"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={pair.target}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=4"]
    command += ["--constraint", "kind=max_requests,count=3", "--output", f"kind=json,path={out}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = json.loads(out.read_text())["benchmarks"]
    assert len(found["requests"]["successful"]) == 3
    assert not found["requests"]["errored"]
    assert read_result(out).num_requests == 3
