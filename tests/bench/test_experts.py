"""``bench experts`` counts the experts that are read, and puts theory's number beside it."""

import io

from rich.console import Console

from specjax.bench.experts import TOKENS, bench_experts


def test_every_number_of_tokens_has_its_rows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- experts: begin -->\n<!-- experts: end -->\n")
    options = {"num_experts": 16, "chosen": 2, "hidden": 32, "wide": 16}
    rows = bench_experts(None, reps=1, readme=page, console=Console(file=io.StringIO()), **options)
    read = [row for row in rows if "experts read" in row.name]
    assert [row.name for row in read] == [f"{count} tokens: experts read" for count in TOKENS]
    assert read[0].value == read[0].peer == 2
    for row, tokens in zip(read, TOKENS, strict=True):
        assert 2 <= row.value <= min(16, 2 * tokens)
    assert all(row.value > 0 for row in rows)
    assert "moe_active_experts" in page.read_text()
