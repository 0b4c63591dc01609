"""The server as a process: the guides' words start it, a signal drains it, two stop it."""

import signal
import socket
import ssl
import subprocess
import sys
import time

import httpx
import pytest
import trustme
from typer.testing import CliRunner

from specjax.cli.app import app
from specjax.server.run import TLS, run_server
from tests.server.processes import PATIENCE, process, streamed


def test_the_guides_words_start_it_and_a_signal_drains_it(pair):
    """The legacy guide's command line, with only names changed; flags are translated."""
    words = "--seed 42 -tp 1 --use-v2-block-manager --num_speculative_tokens 5 "
    words += "--gpu_memory_utilization 0.8 --max-model-len 256 --max-num-seqs 2 "
    words += "--max-num-batched-tokens 16"
    models = ["--model", pair.target, "--speculative_model", pair.draft]
    with process("specjax.server", *models, *words.split()) as (server, client):
        (known,) = client.get("/v1/models").json()["data"]
        assert known["id"] == pair.target
        asked = {"prompt": [7, 8, 9], "max_tokens": 250, "temperature": 0, "ignore_eos": True}
        whole = client.post("/v1/completions", json=asked).json()
        assert whole["metrics"]["speculative_decoding"]["num_spec_tokens"] == 5
        text = streamed(client, lambda: server.send_signal(signal.SIGTERM), **asked)
        assert text == whole["choices"][0]["text"]
        assert server.wait(PATIENCE) == 0
        log = server.stderr.read()
        assert "legacy, use speculative_config=" in log
        assert "options without effect in specjax: gpu_memory_utilization" in log
        assert "compiled" in log
        assert "SIGTERM: finishing what runs" in log
        assert "Traceback" not in log


def test_two_signals_stop_it_and_only_its_owner_may_reach_its_socket(pair, tmp_path):
    socket_file = tmp_path / "socket"
    words = ("serve", pair.target, "--max-model-len", "256", "--max-num-seqs", "1")
    words += ("--served-model-name", "tiny", "--max-num-batched-tokens", "16")
    with process("specjax", *words, uds=str(socket_file), SPECJAX_API_KEY="sesame") as (
        server,
        client,
    ):
        assert oct(socket_file.stat().st_mode)[-3:] == "600"
        assert client.get("/v1/models").status_code == 401
        client.headers["Authorization"] = "Bearer sesame"
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"

        def stop():
            server.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            server.send_signal(signal.SIGTERM)

        body = {"prompt": [7, 8], "n": 200, "max_tokens": 250, "ignore_eos": True}
        with pytest.raises(httpx.TransportError):
            streamed(client, stop, **body)
        assert server.wait(PATIENCE) == 128 + signal.SIGTERM
        log = server.stderr.read()
        assert "sesame" not in log
        assert "Traceback" not in log


def test_https_and_clients_with_certificates(pair, tmp_path):
    authority, stranger = trustme.CA(), trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("server", "ca", "client", "other", "key")}
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(files["server"])
    authority.cert_pem.write_to_path(files["ca"])
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(files["client"])
    stranger.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(files["other"])
    words = ["serve", pair.target, "--max-model-len", "256", "--max-num-seqs", "1"]
    words += ["--ssl-certfile", str(files["server"]), "--ssl-ca-certs", str(files["ca"])]

    def context(name=None):
        made = ssl.create_default_context(cafile=files["ca"])
        if name is not None:
            made.load_cert_chain(files[name])
        return made

    known = context("client")
    with process("specjax", *words, "--ssl-cert-reqs", "2", verify=known) as (_, client):
        assert client.base_url.scheme == "https"
        asked = {"prompt": [7, 8, 9], "max_tokens": 3}
        assert client.post("/v1/completions", json=asked).status_code == 200
        plain = str(client.base_url).replace("https", "http")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{plain}/health")
        for wrong in (context(), context("other")):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{client.base_url}/health", verify=wrong)


def test_wrong_certificates_are_named_before_anything_is_loaded(tmp_path):
    one, two = (trustme.CA().issue_cert("localhost") for _ in range(2))
    names = ("cert", "key", "junk")
    cert, key, junk = (tmp_path / f"{name}.pem" for name in names)
    one.cert_chain_pems[0].write_to_path(cert)
    two.private_key_pem.write_to_path(key)
    junk.write_text("junk")
    for tls, words in (
        (TLS(keyfile=key), "--ssl-keyfile needs --ssl-certfile"),
        (TLS(certfile=cert, cert_reqs=2), "--ssl-cert-reqs needs --ssl-ca-certs"),
        (TLS(certfile=tmp_path / "none.pem"), "is no file"),
        (TLS(certfile=junk), "must be in PEM"),
        (TLS(certfile=cert), "must be in PEM"),
        (TLS(certfile=cert, keyfile=key), "belong to each other"),
    ):
        with pytest.raises(ValueError, match=words):
            run_server("bundled", {}, tls=tls)


def test_what_cannot_be_served_is_one_line_before_anything_is_loaded(pair, tmp_path):
    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "specjax", "serve", *words], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in said(pair.target, "--port", port)
    assert "two models" in said(pair.target, "--model", "bundled")


def test_several_hosts_and_replicas_name_what_serves_them():
    def said(*words: str) -> str:
        result = CliRunner().invoke(app, ["serve", "folder", *words])
        assert result.exit_code == 2
        return result.output

    config = '{"method": "eagle", "model": "head", "num_speculative_tokens": 3}'
    told = said("--nnodes", "2", "-tp", "8", "--speculative-config", config)
    assert "vllm serve folder --nnodes 2 --tensor-parallel-size 8 --speculative-config" in told
    assert config in told
    assert "--to vllm" in told
    assert "several-servers.md" in said("--data-parallel-size", "4")


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr("specjax.cli.serve.NEEDED", ("fastapi", "no_such_package"))
    result = CliRunner().invoke(app, ["serve", "bundled"])
    assert result.exit_code == 2
    assert "serving needs no_such_package: pip install 'specjax[serve]'" in result.output
