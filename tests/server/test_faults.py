"""A full disk, and a server that is killed: it goes on, or starts again, with the same texts."""

import signal
import socket
import time

import httpx
import pytest

from specjax import LLM, SamplingParams
from tests.server.processes import PATIENCE, fill_disk, free_port, process, streamed

PROMPT = [7, 8, 9]
ASKED = {"prompt": PROMPT, "max_tokens": 250, "temperature": 0, "ignore_eos": True}
WORDS = ("--max-model-len", "256", "--max-num-seqs", "2", "--served-model-name", "tiny")


@pytest.fixture(scope="module")
def expected(pair):
    """Return the text of the model's own, offline."""
    llm = LLM(pair.target, max_model_len=256)
    params = SamplingParams(temperature=0.0, max_tokens=250, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    return output.outputs[0].text


def complete(client: httpx.Client) -> str:
    answer = client.post("/v1/completions", json=ASKED)
    answer.raise_for_status()
    return answer.json()["choices"][0]["text"]


def end(server) -> str:
    """Stop a server; return its log."""
    server.send_signal(signal.SIGTERM)
    assert server.wait(PATIENCE) == 0
    return server.stderr.read()


def test_on_a_full_disk_it_serves_and_says_what_is_not_kept(pair, expected, tmp_path):
    folder = tmp_path / "cache"
    started = process(
        "specjax", "serve", pair.target, *WORDS, disk_full=True, SPECJAX_COMPILE_CACHE=str(folder)
    )
    with started as (server, client):
        assert complete(client) == expected
        log = end(server)
    assert log.count("compiled programs are not kept for the next run") == 1
    assert "Traceback" not in log
    assert not [file for file in folder.iterdir() if file.stat().st_size]


def test_a_disk_that_fills_up_and_a_kill_leave_a_cache_that_the_next_server_uses(
    pair, expected, tmp_path
):
    words = ("specjax", "serve", pair.target, *WORDS)
    folder, port = {"SPECJAX_COMPILE_CACHE": str(tmp_path / "cache")}, free_port()
    with process(*words, port=port, **folder) as (server, client):  # it goes on compiling
        fill_disk(server)
        assert complete(client) == expected
        with pytest.raises(httpx.TransportError):
            streamed(client, server.kill, **ASKED)
        assert server.wait(PATIENCE) == -signal.SIGKILL
        assert "Traceback" not in server.stderr.read()
    with process(*words, port=port, **folder) as (server, client):  # at the same address, at once
        assert complete(client) == expected
        assert "Traceback" not in end(server)


def test_a_killed_servers_socket_file_is_taken_over(pair, expected, tmp_path):
    words, uds = ("specjax", "serve", pair.target, *WORDS), str(tmp_path / "socket")
    with process(*words, uds=uds) as (server, client), pytest.raises(httpx.TransportError):
        streamed(client, server.kill, **ASKED)
    with process(*words, uds=uds) as (server, client):
        assert complete(client) == expected
        assert "Traceback" not in end(server)


def test_a_client_that_never_finishes_does_not_keep_a_server_from_ending(pair):
    words = ("specjax", "serve", pair.target, *WORDS, "--shutdown-timeout", "1")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with process(*words) as (server, client):
        address = client.base_url.host, client.base_url.port
        with socket.create_connection(address) as stuck:
            stuck.sendall(head + b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.5)
            start = time.monotonic()
            log = end(server)
            assert time.monotonic() - start < 60
    assert "Traceback" not in log, log
