"""``--nnodes`` and its companions: a command run by several processes as one."""

import time
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from specjax.cli import leave
from specjax.cli.errors import USER_ERRORS, one_line
from specjax.cli.shared_options import with_options_of

FAILED = 2  # exit code


def with_group_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with vLLM's options of several hosts; it joins the others before it runs.

    Of several processes the first prints to stdout. One that fails tells the others, which end.
    """

    def run(command: Callable[..., None], shared: dict[str, Any]) -> None:
        joined = open_group(**shared)
        if not joined:
            return command()
        try:
            return command()
        except BaseException as error:
            end(error)

    return with_options_of(open_group, command, run)


def open_group(
    nnodes: Annotated[int, typer.Option(min=1, help="Processes that run this as one.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="Which of them this is, from 0. Slurm, Open MPI: left out.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="An address of process 0's host, at which it listens.")
    ] = None,
    master_port: Annotated[int, typer.Option(help="The first of two ports there.")] = 29501,
) -> bool:
    """Join the other processes, if there are any; return whether there are.

    Raises:
        ValueError: as ``host.group.join``, or the options do not go together.
    """
    if (node_rank is None) != (master_addr is None):
        raise ValueError("--node-rank and --master-addr go together: give both, or neither.")
    if nnodes == 1:
        if node_rank:
            raise ValueError(f"--node-rank {node_rank} needs --nnodes, the number of processes.")
        return False
    from specjax.host import group

    if node_rank is None or master_addr is None:
        group.detect(nnodes)
    else:
        group.join(group.Place(nnodes, node_rank, master_addr, master_port))
    return True


def end(error: BaseException) -> Any:
    """Print an error, tell the other processes, and end this one without waiting for them."""
    from specjax.host import group

    if isinstance(error, typer.Exit) and error.exit_code == 0:
        raise error
    if isinstance(error, USER_ERRORS):
        text = one_line(error)
        typer.echo(f"error: {text}", err=True)
    else:
        if isinstance(error, RuntimeError):
            time.sleep(1.0)  # of a lost process the connection to it tells first
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)
        traceback.print_exception(error)
    group.give_up(text)
    leave(FAILED)
