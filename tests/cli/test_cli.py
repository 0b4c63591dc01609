"""The command line: what it prints where, and how it fails."""

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specjax import __version__
from specjax.cli import app as cli
from specjax.cli import errors

PROMPT = ("--prompt", "def f(x):", "--max-tokens", "12")
DRAFT_FLAGS = ("--num_speculative_tokens", "3", "--use-v2-block-manager")


def invoke(*args):
    return CliRunner().invoke(cli.app, list(args))


def ids(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["token_ids"] for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def plain(pair, specjax_command):
    """What the tiny target writes without a drafter."""
    return ids(specjax_command("generate", "--model", pair.target, *PROMPT, "--json"))


def test_help_lists_every_command():
    result = invoke("--help")
    assert result.exit_code == 0
    commands = ("demo", "generate", "explore", "extract", "train", "convert", "doctor", "bench")
    for command in (*commands, "audit"):
        assert command in result.output


def test_python_m_says_the_version(specjax_command):
    result = specjax_command("--version")
    assert (result.returncode, result.stdout) == (0, f"specjax {__version__}\n")


def test_train_and_bench_have_help_of_their_own():
    assert "--out" in invoke("train", "lm", "--help").output
    assert "--json" in invoke("bench", "step", "--help").output


def test_doctor_names_what_is_there_and_what_is_missing(specjax_command):
    result = specjax_command("doctor")
    assert result.returncode in (0, 1), result.stderr  # 1: a checkpoint is not there
    for word in ("specjax", "jax", "orbax-checkpoint", "devices", "cores", "cache", "bundled"):
        assert word in result.stdout
    for extra in ("serve", "ab", "bridge", "npu", "dev"):
        assert f"extra {extra}" in result.stdout
    off = specjax_command("doctor", SPECJAX_COMPILE_CACHE="off")
    assert "cache      off" in off.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--speculative-config", "{bad"), "got {bad. In a shell, put single quotes"),
        (("--speculative-config", '{"method": "ngrm"}'), "Did you mean 'ngram'?"),
        (("--temperature", "-1"), "temperature must be non-negative, got -1.0"),
        (("--n", "2"), "n must be 1 when using greedy sampling, got 2: all"),
        (("--n", "2"), "pass --temperature > 0"),
        (("--tensor-parallel-size", "64"), "tensor_parallel_size=64"),
        (("--quantization", "ascend"), "quantization='ascend'"),
        (("--prompt-file", "/nowhere/prompt.txt"), "No such file or directory"),
        (("--speculative-config", "{}", "--speculative-model", "x"), "exclude each other"),
        (("--stream", "--json"), "--stream"),
        (("--stream", "--trace", "log.jsonl"), "--trace"),
        (("--model", "facebook/opt-125m"), "specjax does not download"),
    ],
)
def test_what_the_user_got_wrong_is_one_line_and_code_2(args, said, pair):
    result = invoke("generate", "--model", pair.target, "--prompt", "x", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_no_prompt_is_an_error():
    result = invoke("generate")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no prompt")


def test_unknown_options_are_refused():
    result = invoke("generate", "--prompt", "x", "--speculative-modle", "y")
    assert result.exit_code == 2
    assert "speculative-modle" in result.stderr


def test_debug_keeps_the_traceback(monkeypatch):
    monkeypatch.setenv(cli.DEBUG, "")  # so that --debug is undone afterwards
    result = invoke("--debug", "generate", "--model", "nowhere", "--prompt", "x")
    assert isinstance(result.exception, ValueError)


def test_ctrl_c_exits_130(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("specjax.cli.doctor.examine", interrupted)
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."), MemoryError()],
)
def test_running_out_of_memory_names_what_to_lower(error, monkeypatch):
    def greedy(*args, **kwargs):
        raise error

    monkeypatch.setattr("specjax.cli.doctor.examine", greedy)
    result = invoke("doctor")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    for name in ("num_speculative_tokens", "max_num_seqs", "max_model_len"):
        assert name in line


def test_ctrl_c_while_importing_has_no_traceback():
    program = "import specjax.cli; raise KeyboardInterrupt"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_every_distinct_warning_is_shown_once(capsys):
    show = errors.warn_once()
    for message in (
        "engine-only option: one",
        "engine-only option: two",
        "engine-only option: one",
    ):
        show(UserWarning(message), UserWarning, "x.py", 1)
    assert capsys.readouterr().err.splitlines() == [
        "warning: engine-only option: one",
        "warning: engine-only option: two",
    ]


def test_a_training_runs_folder_is_told_from_a_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    result = invoke("generate", "--model", str(tmp_path), "--prompt", "x")
    assert result.exit_code == 2
    assert f"--model {tmp_path / 'model'}" in result.stderr


def test_too_many_tokens_is_one_warning(pair, specjax_command):
    args = ("--prompt", "x", "--max-tokens", "600", "--max-model-len", "16")
    result = specjax_command("generate", "--model", pair.target, *args)
    assert result.returncode == 0
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert "--max-tokens 600 does not fit" in line


def test_a_training_without_a_length_names_its_options(tmp_path):
    result = invoke("train", "lm", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "--steps" in result.stderr
    assert "--minutes" in result.stderr


def test_a_signal_ends_a_real_run_without_a_traceback(pair, tmp_path):
    args = ["generate", "--model", pair.target, "--prompt", "x", "--max-tokens", "400", "--stream"]
    command = [sys.executable, "-m", "specjax", *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.read(1)  # it is running
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)  # 0: it had just finished


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
        {"model": "DRAFT", "num_speculative_tokens": 3, "draft_sample_method": "coupled"},
    ],
    ids=["ngram", "coupled"],
)
def test_speculation_never_changes_the_text(options, pair, plain, specjax_command):
    config = json.dumps(options).replace("DRAFT", pair.draft)
    args = ("--speculative-config", config, *PROMPT, "--json")
    result = specjax_command("generate", "--model", pair.target, *args)
    assert ids(result) == plain
    assert "mean acceptance length" in result.stderr


def test_the_legacy_flags_of_the_guides_work(pair, plain, specjax_command):
    engine_only = ("--gpu_memory_utilization", "0.8", "--enforce-eager", "--trust-remote-code")
    args = ("--speculative_model", pair.draft, *DRAFT_FLAGS, *engine_only, "-tp", "1")
    result = specjax_command("generate", "--model", pair.target, *args, *PROMPT, "--json")
    assert ids(result) == plain
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert "legacy, use speculative_config=" in warnings[0]
    assert "gpu_memory_utilization, enforce_eager, trust_remote_code" in warnings[1]


def test_legacy_ngram_flags_work(pair, plain, specjax_command):
    args = ("--speculative-model", "[ngram]", "--num-speculative-tokens=5")
    lookup = ("--ngram_prompt_lookup_max", "4")
    result = specjax_command("generate", "--model", pair.target, *args, *lookup, *PROMPT, "--json")
    assert ids(result) == plain


def test_streamed_and_whole_completions_are_the_same_text(pair, specjax_command):
    args = ("generate", "--model", pair.target, "--prompt", "import", "--max-tokens", "40")
    whole, streamed = specjax_command(*args), specjax_command(*args, "--stream")
    assert whole.returncode == streamed.returncode == 0, streamed.stderr
    assert whole.stdout == streamed.stdout


def test_prompts_come_from_files_too(pair, tmp_path, specjax_command):
    text, lines = tmp_path / "one.txt", tmp_path / "several.jsonl"
    text.write_text("def f(x):")
    lines.write_text('"def f(x):"\n\n{"prompt": "import"}\n{"turns": ["class"]}\n')
    args = ("generate", "--model", pair.target, "--max-tokens", "4", "--json", "--prompt-file")
    assert len(ids(specjax_command(*args, text))) == 1
    prompts = [
        json.loads(line)["prompt"] for line in specjax_command(*args, lines).stdout.splitlines()
    ]
    assert prompts[1:] == ["import", "class"]
    lines.write_text("[]\n")
    broken = specjax_command(*args, lines)
    assert broken.returncode == 2
    assert "line 1" in broken.stderr
