"""``bench start``, ``prefix`` and ``structured`` put their rows and goals in their sections."""

import io
from contextlib import nullcontext
from functools import partial

import pytest
from rich.console import Console

from specjax.bench import prefix, serve, start, structured
from specjax.bench.prompts import Chosen, Completion, Prompt
from specjax.bench.report import Row
from specjax.bench.services import open_services
from specjax.engine.llm import LLM

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SILENT = Console(file=io.StringIO())


@pytest.fixture
def page(tmp_path):
    """Return a Markdown file with an empty section for each of them."""
    file = tmp_path / "page.md"
    names = ("start", "prefix", "structured")
    file.write_text("".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in names))
    return file


def test_the_second_turn_is_held_against_the_first(pair, page, monkeypatch):
    monkeypatch.setattr(prefix, "time_turns", lambda llm, chats, most: (1.0, 0.1 if most else 1.1))
    monkeypatch.setattr(prefix, "SHARED", 40)
    rows = prefix.bench_prefix(pair.target, NGRAM, None, reps=1, readme=page, console=SILENT)
    assert [row.goal for row in rows] == [None, None, None, None, "<= 0.2"]
    assert "| prefix cache: second turn, 40 more | 100 ms | the first: 1,000 | 0.10 | <= 0.2 |" in (
        page.read_text()
    )


def test_texts_with_a_schema_are_held_against_free_ones(page, monkeypatch):
    speeds = iter([10.0, 8.0, 20.0, 19.0])
    services = nullcontext({"plain": None, "drafted": None})
    monkeypatch.setattr(structured, "LLM", lambda *_, **__: None)
    monkeypatch.setattr(structured, "open_services", lambda models, max_waiting: services)
    monkeypatch.setattr(structured, "complete", lambda *_: [])
    monkeypatch.setattr(structured, "rate_of", lambda run: partial(float, next(speeds)))
    monkeypatch.setattr(structured, "host_costs", lambda *_: (1.0, 2.0, 4.0))
    rows = structured.bench_structured("m", NGRAM, None, reps=1, readme=page, console=SILENT)
    assert {row.name: (row.goal, row.met) for row in rows if row.goal} == {
        "plain, schema": (">= 0.9", False),
        "drafted, schema": (">= 0.9", True),
        "speedup, schema": (">= 1", True),
    }
    assert "| plain, schema | 8 tokens/s | plain: 10 | 0.80 | >= 0.9, missed |" in page.read_text()


def test_a_service_completes_free_texts_and_texts_held_to_the_schema(pair, monkeypatch):
    monkeypatch.setattr(structured, "TOKENS", 24)
    llm = LLM(pair.target, speculative_config=NGRAM, max_num_seqs=2, max_model_len=64)
    with open_services({"drafted": llm}, max_waiting=2) as services:
        free, held = (
            structured.complete(services["drafted"], ["def add(", "class A"], form)
            for form in (None, structured.FORM)
        )
    assert {len(one.token_ids) for one in (*free, *held)} == {24}
    assert all(one.text.startswith('[{"name":"') for one in held)
    assert not any(one.text.startswith("[{") for one in free)
    assert any(one.drafts for one in held)
    assert min(structured.host_costs(llm, held)) > 0


def test_starts_are_held_against_their_goals(page, monkeypatch):
    monkeypatch.setattr(start, "first_token", lambda config: 1.0)
    monkeypatch.setattr(start, "first_answer", lambda folder: 6.0)
    rows = start.bench_start(None, reps=1, readme=page, console=SILENT)
    assert [row.met for row in rows if row.name.startswith("server")] == [True, False]
    assert "| server start to first answer, second start | 6 s |  |  | <= 5 s, missed |" in (
        page.read_text()
    )


def test_a_page_without_the_section_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "page.md").write_text("")
    with pytest.raises(ValueError, match="start: begin"):
        start.bench_start(None, readme=tmp_path / "page.md")


def test_a_run_of_bench_serve_that_is_cut_off_keeps_its_rows(pair, tmp_path, monkeypatch):
    file = tmp_path / "rows.json"

    def measure(*_):
        yield [Row(name="first", value=1, unit="tokens/s")]
        assert '"first"' in file.read_text()
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "measure", measure)
    monkeypatch.setattr(serve, "open_servers", lambda *_: ({}, ""))
    done = Completion(Prompt("one", "", [1, 2]), [3, 4], 1.0)
    monkeypatch.setattr(serve, "choose", lambda *_: Chosen("shipped", [done], 1, 1))
    with pytest.raises(KeyboardInterrupt):
        serve.bench_serve(file, model=pair.target, console=SILENT)
    assert '"first"' in file.read_text()
