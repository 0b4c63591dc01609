"""``specjax lower`` and ``specjax certify``: lower a checkpoint to torch, and compare them."""

from pathlib import Path
from typing import Annotated

import typer

from specjax.cli.errors import plainly

Model = Annotated[str, typer.Option(help="Checkpoint folder, or 'bundled'.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write it here, as JSON.")]


@plainly
def lower(
    model: Model = "bundled",
    what: Annotated[str, typer.Option(help="forward, verify or judge.")] = "judge",
    rule: Annotated[str, typer.Option(help="walk or rejection.")] = "walk",
    plan: Annotated[
        str, typer.Option(help="Kernels: npu, npu-paged, torch or decomposed (none).")
    ] = "npu",
    dtype: Annotated[str, typer.Option(help="auto (the checkpoint's), bfloat16, ...")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Tokens verified per row, K + 1.")] = 4,
    capacity: Annotated[int, typer.Option(min=8, help="Slots of the cache per row.")] = 256,
    report: Annotated[bool, typer.Option("--report", help="Print the lowering report.")] = False,
    json_file: Json = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the torch.export program here (.pt2).")
    ] = None,
) -> None:
    """Lower a part of a checkpoint's round to torch or torch_npu, and say what became of it.

    Reads no weights: shapes are enough. Nothing is executed on hardware.
    """
    from specjax.bundled import resolve
    from specjax.engine.device import bridge
    from specjax.host.files import write_atomically, write_json
    from specjax.weights.hf_config import read_config

    targets = bridge().lowering_targets
    config, _ = read_config(resolve(model), dtype=dtype)
    sizes = targets.Sizes(batch_size, nodes, capacity, capacity)
    part = targets.lowering_target(what, config, sizes, rule)
    program = part.lower(plan=plan)
    if report or (json_file is None and save is None):
        typer.echo(str(program.report))
    if json_file is not None:
        write_json(json_file, program.report.to_dict())
        typer.echo(f"wrote {json_file}")
    if save is not None:
        with write_atomically(save) as file:
            targets.save(program, part, file)
        typer.echo(f"wrote {save}")


@plainly
def certify(
    model: Model = "bundled",
    json_file: Json = None,
    out: Annotated[Path | None, typer.Option(help="Write the page here, as Markdown.")] = None,
) -> None:
    """Compare the jitted and the lowered program: the parity certificate (one minute).

    Exit code 1: it does not pass.
    """
    from specjax.engine.device import bridge
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.host.files import write_atomically, write_json

    enable_compile_cache()
    bridge()  # raises where torch is missing
    from npu_bridge import certificate as parity

    certificate = parity.certify(model)
    page = parity.page(certificate)
    typer.echo(page)
    if json_file is not None:
        write_json(json_file, certificate)
    if out is not None:
        with write_atomically(out) as file:
            file.write(page.encode())
    if not certificate["passes"]:
        raise typer.Exit(1)
