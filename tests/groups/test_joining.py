"""Processes find each other or say in one line why not; what cannot be is refused before that."""

import socket
import threading
import time

import pytest
from typer.testing import CliRunner

from specjax.cli import app as cli
from specjax.host import group
from specjax.launch.__main__ import free_ports
from tests.groups.test_generate import listening


@pytest.fixture
def place(monkeypatch):
    monkeypatch.setattr(group, "START_TIMEOUT", 1.0)
    port = free_ports()
    return lambda rank, nnodes=2: group.Place(nnodes, rank, "127.0.0.1", port)


def meet(*places):
    """Return what process 0 and each other one got: connections, or the error."""
    found = {}

    def run(key, function, where):
        try:
            found[key] = function(where)
        except ValueError as error:
            found[key] = str(error)

    threads = [threading.Thread(target=run, args=(0, group.wait_for_all, places[0]))]
    threads += [
        threading.Thread(target=run, args=(i, group.call_first, where))
        for i, where in enumerate(places[1:], start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return found


def test_all_meet_in_any_order(place):
    found = meet(place(0, 3), place(2, 3), place(1, 3))
    assert sorted(line.rank for line in found[0]) == [1, 2]
    assert found[1].rank == found[2].rank == 0
    for line in (*found[0], found[1], found[2]):
        line.close()


def test_another_number_of_processes_is_told_to_all(place):
    found = meet(place(0, 2), place(1, 3))
    assert found[0] == found[1]
    assert "process 1 was started with --nnodes 3, process 0 with 2" in found[0]


def test_two_of_one_rank_are_told(place):
    found = meet(place(0, 3), place(1, 3), place(1, 3))
    assert all(
        "two processes were started with --node-rank 1 of --nnodes 3" in found[i] for i in found
    )


def test_an_absent_process_is_named(place):
    found = meet(place(0, 3), place(2, 3))
    assert "there is no process [1]" in found[0]
    assert "there is no process [1]" in found[1]


def test_an_unreachable_first_process_is_said(place):
    with pytest.raises(ValueError, match=r"no process 0 at 127\.0\.0\.1:\d+ .*--node-rank 0"):
        group.call_first(place(1))


def test_a_port_in_use_is_said(place):
    with socket.create_server(place(0)[2:]), pytest.raises(ValueError, match="cannot listen at"):
        group.wait_for_all(place(0))


def test_the_first_process_listens_at_the_given_address_only(place):
    thread = threading.Thread(target=meet, args=(place(0),))
    thread.start()
    time.sleep(0.2)  # until it listens
    assert listening(place(0).master_port) == ["127.0.0.1"]
    thread.join(10)


def test_a_stranger_is_ignored(place):
    result = {}
    thread = threading.Thread(target=lambda: result.update(lines=group.wait_for_all(place(0))))
    thread.start()
    time.sleep(0.2)  # until it listens
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000 + b"\n", b"[1]\n"):
        with socket.create_connection(place(0)[2:], 2) as stranger:
            stranger.sendall(words)
    line = group.call_first(place(1))
    thread.join(10)
    assert line.rank == 0
    assert [one.rank for one in result["lines"]] == [1]
    for one in (line, *result["lines"]):
        one.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nnodes", 2, "--node-rank", 2, "--master-addr", "127.0.0.1"), "one of 0 to 1"),
        (("--nnodes", 2, "--node-rank", 0), "go together"),
        (("--node-rank", 1, "--master-addr", "127.0.0.1"), "needs --nnodes"),
        (
            ("--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", 65535),
            "--master-port must be in 1 .. 65534",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(words, says):
    result = CliRunner().invoke(cli.app, ["generate", "--prompt", "a", *map(str, words)])
    assert result.exit_code == 2
    assert says in result.stderr
