"""``bench int8`` has a row for every number of columns and every other type."""

import io

from rich.console import Console

from specjax.bench.int8 import bench_int8


def test_every_number_of_columns_has_its_rows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- int8: begin -->\n<!-- int8: end -->\n")
    options = {"sizes": ((24, 16), (16, 24)), "columns": (1, 3), "layers": 2}
    rows = bench_int8(None, reps=1, readme=page, console=Console(file=io.StringIO()), **options)
    names = [(row.name, row.against) for row in rows[1:]]
    whats = ("1 columns: int8", "3 columns: int8")
    assert names == [(what, peer) for what in whats for peer in ("bfloat16", "float32")]
    assert all(row.value > 0 for row in rows[1:])
    assert "2 layers" in page.read_text()
