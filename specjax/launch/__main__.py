"""Start ``specjax COMMAND`` in several processes of this host, which run it as one.

    python -m specjax.launch --nproc 2 -- generate --tensor-parallel-size 2 --prompt "def f("

Each line of process I but 0 begins with [I]. When one fails, all end, with its exit code.
"""

import argparse
import socket
import subprocess
import sys
import threading

PATIENCE = 30.0  # seconds for the others to end after one has failed


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        "python -m specjax.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nproc", type=int, required=True, help="how many processes")
    parser.add_argument("command", nargs="+", help="after --: a specjax command and its options")
    return parser


def free_ports() -> int:
    """Return the first of two neighbouring ports that are free on this host."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def forward(process: subprocess.Popen, rank: int) -> None:
    """Copy a process's stderr, with its number before each line."""
    assert process.stderr is not None
    for line in process.stderr:
        sys.stderr.write(f"[{rank}] {line}" if rank else line)
        sys.stderr.flush()


def main(words: list[str] | None = None) -> int:
    """Run the command in all processes; return 0, or the exit code of the first that failed."""
    given = new_parser().parse_args(words)
    if given.nproc < 1:
        print(f"error: --nproc must be at least 1, got {given.nproc}.", file=sys.stderr)
        return 2
    place = ["--nnodes", str(given.nproc), "--master-addr", "127.0.0.1"]
    place += ["--master-port", str(free_ports())]
    start = [sys.executable, "-m", "specjax", *given.command, *place]
    processes = [
        subprocess.Popen([*start, "--node-rank", str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(given.nproc)
    ]
    readers = [
        threading.Thread(target=forward, args=(process, rank))
        for rank, process in enumerate(processes)
    ]
    for reader in readers:
        reader.start()
    try:
        codes = wait(processes)
    except KeyboardInterrupt:  # the terminal has told them too
        codes = [process.wait() for process in processes]
    for reader in readers:
        reader.join()
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def wait(processes: list[subprocess.Popen]) -> list[int]:
    """Wait for all; once one has failed, the others have half a minute.

    Returns:
        The exit codes, that of the first that failed before the others.
    """
    left, codes = list(processes), []
    while left:
        for process in list(left):
            try:
                code = process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            left.remove(process)
            codes.append(code)
            if code and left:
                codes += [stop(one) for one in left]
                return codes
    return codes


def stop(process: subprocess.Popen) -> int:
    """Wait for a process whose group has failed, and kill it if it does not end."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
