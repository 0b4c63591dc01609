"""Several processes as one: they find each other, run one program (`jax.distributed`), end as one.

Process 0 listens at an address that all are told. The others connect, say which of how many they
are, and stay connected: a process that is killed closes its connection, and all others end at once
with one line. JAX itself would wait for 100 s, and abort.

Every process must do the same: where one has another prompt, sums over devices mix two texts and no
error tells. ``check_same`` refuses that.
"""

import atexit
import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

DEFAULT_PORT = 29501  # vLLM's
START_TIMEOUT = 60.0  # seconds to wait for the other processes
LONGEST = 1 << 16  # bytes of one line between two processes
LOST = 3  # exit code of a process whose group has ended


class Place(NamedTuple):
    """Which of how many processes this one is, and where process 0 listens."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int = DEFAULT_PORT


def check(place: Place) -> None:
    """Raise ValueError for a number of processes, a rank or a port that cannot be."""
    if not 0 <= place.node_rank < place.nnodes:
        raise ValueError(
            f"--node-rank must be one of 0 to {place.nnodes - 1} for --nnodes {place.nnodes}, got "
            f"{place.node_rank}."
        )
    if not 0 < place.master_port < 65535:
        raise ValueError(f"--master-port must be in 1 .. 65534, got {place.master_port}.")


def join(place: Place) -> None:
    """Become one of several processes; call it before anything asks JAX for its devices.

    Process 0 listens at ``master_addr`` only: at ``master_port``, and, for JAX, at the next one.
    Whoever reaches these ports can take part: use a private network.

    Raises:
        ValueError: a number is wrong, another process was told otherwise, the address cannot be
            reached or used, or not all are there within a minute.
    """
    check(place)
    lines = wait_for_all(place) if place.node_rank == 0 else [call_first(place)]
    jax_address = f"{place.master_addr}:{place.master_port + 1}"
    jax.distributed.initialize(
        jax_address,
        place.nnodes,
        place.node_rank,
        coordinator_bind_address=jax_address,
        initialization_timeout=int(START_TIMEOUT),
    )
    for line in lines:
        threading.Thread(target=watch, args=(line, lines), daemon=True).start()
    atexit.register(part, lines)  # before JAX's own, which waits for all
    _lines.extend(lines)
    divert_stdout()


def detect(nnodes: int) -> None:
    """Join the processes that Slurm, Open MPI or a TPU pod has started, as JAX finds them.

    Raises:
        ValueError: JAX finds no such environment, or another number of processes.
    """
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise ValueError(
            f"--nnodes {nnodes} without --node-rank and --master-addr asks JAX, which sees neither "
            f"Slurm, Open MPI nor a TPU pod ({error}): give both."
        ) from None
    if jax.process_count() != nnodes:
        raise ValueError(f"--nnodes {nnodes}, and JAX found {jax.process_count()} processes.")
    divert_stdout()


def divert_stdout() -> None:
    """Leave stdout to Python, and of several processes to the first.

    Gloo, which carries sums between CPUs, writes there whom it has met: that goes to stderr.
    """
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w") if is_first() else open(os.devnull, "w")  # noqa: SIM115
    os.dup2(2, 1)


class Line:
    """A connection to another process, which carries one JSON object per line."""

    def __init__(self, connection: socket.socket, rank: int):
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # a host that vanished is noticed within 25 s
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.rank = rank
        self._connection, self._file = connection, connection.makefile("rb")

    def tell(self, **words: Any) -> None:
        """Send an object; whoever has gone does not hear it."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(words).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """Return the next object; None if the connection ended or it is none."""
        try:
            words = json.loads(self._file.readline(LONGEST))
        except (OSError, ValueError):
            return None
        return words if isinstance(words, dict) else None

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._connection.close()


_lines: list[Line] = []  # to the other processes; of process 0 to all, of the others to it


def wait_for_all(place: Place) -> list[Line]:
    """Return process 0's connections to all others. Raises ValueError as ``join``."""
    lines: dict[int, Line] = {}
    try:
        listener = socket.create_server((place.master_addr, place.master_port))
    except OSError as error:
        raise ValueError(
            f"process 0 cannot listen at {place.master_addr}:{place.master_port}: "
            f"{error.strerror}. --master-addr is an address of its own host, and two ports from "
            "--master-port on must be free."
        ) from None
    until = time.monotonic() + START_TIMEOUT
    with listener:
        while len(lines) < place.nnodes - 1:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                absent = sorted({*range(1, place.nnodes)} - lines.keys())
                fail(lines.values(), f"after {START_TIMEOUT:.0f} s there is no process {absent}.")
            connection.settimeout(5.0)
            line = Line(connection, -1)
            words = line.hear() or {}
            rank, nnodes = words.get("node_rank"), words.get("nnodes")
            if not isinstance(rank, int):
                line.close()  # a stranger
                continue
            if nnodes != place.nnodes or rank in (0, *lines):
                what = f"process {rank} was started with --nnodes {nnodes}, process 0 with "
                if nnodes == place.nnodes:
                    what = f"two processes were started with --node-rank {rank} of --nnodes "
                fail([*lines.values(), line], f"{what}{place.nnodes}.")
            connection.settimeout(None)
            line.rank = rank
            lines[rank] = line
    for line in lines.values():
        line.tell(start=True)
    return list(lines.values())


def call_first(place: Place) -> Line:
    """Return another process's connection to process 0. Raises ValueError as ``join``."""
    until = time.monotonic() + START_TIMEOUT
    while True:
        try:
            connection = socket.create_connection((place.master_addr, place.master_port), 5.0)
            break
        except OSError as error:
            if time.monotonic() > until or isinstance(error, socket.gaierror):
                raise ValueError(
                    f"no process 0 at {place.master_addr}:{place.master_port} ({error}): start it "
                    "with --node-rank 0, and let this host reach that port and the next one."
                ) from None
            time.sleep(0.1)
    connection.settimeout(2 * START_TIMEOUT)
    line = Line(connection, 0)
    line.tell(node_rank=place.node_rank, nnodes=place.nnodes)
    words = line.hear()
    if words is None or "error" in words:
        line.close()
        raise ValueError((words or {}).get("error", "process 0 ended while the others gathered."))
    connection.settimeout(None)
    return line


def fail(lines: Any, error: str) -> NoReturn:
    """Tell the others why the group cannot begin, and raise it here."""
    for line in lines:
        line.tell(error=error)
        line.close()
    raise ValueError(error)


def watch(line: Line, lines: list[Line]) -> None:
    """End this process when another one has ended before its time, and tell the rest."""
    words = line.hear()
    if words is not None and "done" in words:
        return
    why = (words or {}).get("error") or f"process {line.rank} was lost"
    for other in lines:
        if other is not line:
            other.tell(error=why)
    ended = f"error: {why.rstrip('.')}; all processes end: start them again."
    print(ended, file=sys.stderr, flush=True)
    os._exit(LOST)


def part(lines: list[Line]) -> None:
    """Say that this process has done its work."""
    for line in lines:
        line.tell(done=True)


def give_up(error: str) -> None:
    """Tell the others that this process ends with an error; the caller ends it at once."""
    for line in _lines:
        line.tell(error=f"process {jax.process_index()}: {error}")


def is_joined() -> bool:
    """Return whether this is one of several processes, without asking JAX for devices."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Return whether this is the only process, or the one that prints and writes."""
    return not is_joined() or jax.process_index() == 0


def check_same(facts: Mapping[str, Any]) -> None:
    """Refuse processes that differ: gather a hash of each fact from all.

    Args:
        facts: by name, values that JSON or ``str`` can write, equal in all processes.

    Raises:
        ValueError: in all processes, naming what differs.
    """
    if not is_joined():
        return
    texts = [json.dumps(value, default=str, sort_keys=True) for value in facts.values()]
    own = np.stack([np.frombuffer(hashlib.sha256(x.encode()).digest(), np.uint8) for x in texts])
    everybody = np.asarray(multihost_utils.process_allgather(own))
    for name, hashes in zip(facts, np.moveaxis(everybody, 1, 0), strict=True):
        others = [rank for rank, one in enumerate(hashes) if (one != hashes[0]).any()]
        if others:
            raise ValueError(
                f"processes {others} have another {name} than process 0: start all with the same "
                "command line, files and version."
            )


def from_first(make: Callable[[], Any]) -> Any:
    """Return what process 0 makes, in all processes; it must be made of JSON's values."""
    if not is_joined():
        return make()
    text = json.dumps(make()).encode() if is_first() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    padded = np.zeros(size, np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
