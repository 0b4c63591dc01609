"""The log of a run: a progress bar or plain lines, a JSONL file, and a loss curve."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specjax.host.files import write_atomically
from specjax.host.group import is_first


def echo(line: str) -> None:
    """Print a line without buffering, also into a file or a pipe."""
    print(line, flush=True)


def read_losses(path: Path) -> list[dict]:
    """Return the rows of loss.jsonl, without a truncated last line."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def rewind(path: Path, step: int) -> None:
    """Remove the rows after ``step``, which the resumed run writes again."""
    rows = [row for row in read_losses(path) if row["step"] <= step]
    with write_atomically(path) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def describe(row: dict, steps: int) -> str:
    """Return one row as text."""
    line = f"step {row['step']}/{steps}"
    for key, name in (("loss", "loss"), ("held_out_loss", "held-out")):
        line += f"  {name} {row[key]:.4f}" if key in row else ""
    return line + (
        f"  {row['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in row else ""
    )


@contextmanager
def open_log(out: Path, resumed: int, steps: int) -> Iterator[Callable[[dict], None]]:
    """Yield ``report(row)``; a row has step, loss, tokens_per_second, maybe held_out_loss.

    That of step 0, before any training, has no loss and no speed.

    Rows go to out/loss.jsonl, with the seconds since this process began to train, and in
    words to out/train.log and to the terminal's bar, or to stdout where it is no terminal. Of
    several processes the first writes.
    """
    if not is_first():
        yield lambda row: None
        return
    rewind(out / "loss.jsonl", resumed)
    start = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, disable=not sys.stdout.isatty())
    task = bar.add_task("training", total=steps, completed=resumed)
    with open(out / "loss.jsonl", "a") as losses, open(out / "train.log", "a") as lines, bar:

        def report(row: dict) -> None:
            row = {**row, "seconds": round(time.monotonic() - start, 1)}
            line = describe(row, steps)
            print(json.dumps(row), file=losses, flush=True)
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=lines, flush=True)
            bar.update(task, completed=row["step"], description=line)
            if bar.disable:
                print(line, flush=True)

        yield report


def draw_losses(out: Path) -> None:
    """Draw out/loss.jsonl as out/loss.png: the losses, and a head's held-out acceptance."""
    from matplotlib.figure import Figure  # half a second of a server's start, which reads logs only

    rows = read_losses(out / "loss.jsonl")
    held_out = [row for row in rows if "held_out_loss" in row]
    trained = [row for row in rows if "loss" in row]
    measured = [row for row in held_out if "acceptance" in row]
    figure = Figure(figsize=(6, 7 if measured else 4), layout="constrained")
    panels = figure.subplots(2 if measured else 1, squeeze=False)[:, 0]
    axes = panels[0]
    axes.plot([r["step"] for r in trained], [r["loss"] for r in trained], lw=0.8, label="training")
    values = [r["held_out_loss"] for r in held_out]
    axes.plot([r["step"] for r in held_out], values, marker=".", label="held-out")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend()
    if measured:
        steps = [row["step"] for row in measured]
        for i, line in enumerate(zip(*(row["acceptance"] for row in measured), strict=True)):
            panels[1].plot(steps, line, marker=".", label=f"draft token {i + 1}")
        panels[1].set(xlabel="step", ylabel="chance of acceptance (held-out)", ylim=(0, 1))
        panels[1].legend()
    with write_atomically(out / "loss.png") as file:
        figure.savefig(file, format="png", dpi=120)
