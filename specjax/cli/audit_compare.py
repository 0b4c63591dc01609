"""``specjax audit rules --compare``: published verifications on one axis."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specjax.host.files import write_json
from specjax.host.markdown import around_section, picture, replace_section, table

if TYPE_CHECKING:
    from specjax.audit.compare import Compared, Comparison

SECTION = "verifications"  # of a README


def compare_rules(
    json_file: Path | None, image: Path | None, readme: Path | None, cost: float
) -> None:
    """Print, draw and write what every verification brings; exit code 1 if one is not exact."""
    from specjax.audit.compare import BUNDLED, compare
    from specjax.host.compile_cache import enable_compile_cache
    from specjax.viz.figure import check_picture, save_figure

    if image is not None:
        check_picture(image)
    if readme is not None:
        around_section(readme, SECTION)
    enable_compile_cache()
    found = compare()
    lines = table(*markdown(found, BUNDLED, cost))
    for line in lines:
        typer.echo(line)
    if json_file is not None:
        rows = [row._asdict() for row in found.rows]
        write_json(json_file, {"rows": rows, "best": found.best})
        typer.echo(f"wrote {json_file}")
    if image is not None:
        from specjax.viz.verifications import verification_comparison

        save_figure(verification_comparison(found, BUNDLED), image)
        typer.echo(f"wrote {image}")
    if readme is not None:
        shown = picture("tokens per round of published verifications", image, readme)
        replace_section(readme, SECTION, [*lines, *shown])
    if not all(row.kept for row in found.rows):
        raise typer.Exit(1)


def markdown(
    found: "Comparison", family: str, cost: float
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the headings and rows of a table."""
    families = list(found.rows[0].tokens)
    headings = ["verification", "from", "drafts", *families, "of the best", "per cost", "TV"]

    def cells(row: "Compared") -> tuple[str, ...]:
        best = found.best.get(row.drafts, {}).get(family)
        share = "" if best is None or row.promise == "lossy" else f"{row.tokens[family] / best:.1%}"
        return (
            f"{row.name}{f', {row.curve}' if row.curve else ''}",
            f"arXiv:{row.paper}" if row.paper[:1].isdigit() else row.paper,
            row.drafts,
            *(f"{row.tokens[name]:.3f}" for name in families),
            share,
            f"{row.per_cost(family, cost):.3f}",
            f"{row.tv[family]:.2g}" if row.promise == "lossy" else f"{row.worst:.0e}",
        )

    bounds = [
        ("*no exact rule brings more*", "", drafts, *(f"{best[name]:.3f}" for name in families),
         "", "", "")
        for drafts, best in found.best.items()
    ]  # fmt: skip
    return headings, [*(cells(row) for row in found.rows), *bounds]
