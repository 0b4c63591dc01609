"""The guide's benchmark of suffix decoding on Ascend, as scripts to run there.

Source: vllm-ascend's guide "Suffix speculative decoding" (Qwen3-32B, one Atlas 800T A2 node, six
datasets at three concurrencies each). Not executed on hardware by us.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from specjax.host.files import write_atomically
from specjax.theory.published import SUFFIX_BENCHMARK

CONFIG = '{"method": "suffix", "num_speculative_tokens": 3}'
ADDITIONAL = '{"pa_shape_list":[48,64,72,80], "weight_prefetch_config":{"enable":true}}'
PORTS = {"suffix": 8011, "plain": 8012}
CARDS = {"suffix": "0,1,2,3", "plain": "4,5,6,7"}
MAX_TOKENS = 4000
SERVER = """\
#!/usr/bin/env bash
# The {label} server, inside the vllm-ascend image of the guide (v0.13.0rc1).{install}
set -euo pipefail
export ASCEND_RT_VISIBLE_DEVICES={cards}
export TASK_QUEUE_ENABLE=1
export HCCL_OP_EXPANSION_MODE="AIV"
export VLLM_ASCEND_ENABLE_FLASHCOMM1=1
exec vllm serve {model} \\
  --served-model-name qwen3 \\
  --trust-remote-code \\
  --distributed-executor-backend mp \\
  --tensor-parallel-size 4 \\
  --max-model-len 5500 \\
  --max-num-batched-tokens 40960 \\
{speculative}  --gpu-memory-utilization 0.9 \\
  --additional-config '{additional}' \\
  --port {port}
"""
JOB = """\
#!/usr/bin/env bash
# Plain against suffix decoding: six datasets, three concurrencies each, as the guide did; about
# as long as the guide's own runs. Interrupted? Run it again: it goes on where it stopped.
# PLAIN, SUFFIX and LIMIT (prompts per dataset) can be set from outside, for a dry run too.
set -euo pipefail
PLAIN=${{PLAIN:-http://localhost:{plain}}}
SUFFIX=${{SUFFIX:-http://localhost:{suffix}}}
"""
LINE = """\
specjax ab run --arm "plain=$PLAIN" --arm "suffix=$SUFFIX" \\
  --arm-config suffix='{config}' --dataset {path} --limit "${{LIMIT:-{limit}}}" \\
  {loads} --chat --temperature 0 --max-tokens "${{MAX_TOKENS:-{max_tokens}}}" \\
  --slo tpot=50ms --timeout 1800 --out {out}
"""


def plan_ascend_suffix(folder: Path, model: str, datasets: Mapping[str, str]) -> list[Path]:
    """Write two server scripts and the job; return their paths.

    ``datasets`` maps the guide's names to local paths. Raises ValueError for a missing one.
    """
    names = list(dict.fromkeys(row.dataset for row in SUFFIX_BENCHMARK))
    missing = [name for name in names if name not in datasets]
    if missing:
        raise ValueError(
            f"the guide has six datasets, no path was given for {', '.join(missing)}: "
            f"--dataset {missing[0]}=/path/to/file"
        )
    unknown = [name for name in datasets if name not in names]
    if unknown:
        raise ValueError(f"unknown dataset {unknown[0]!r}; the guide has {', '.join(names)}")
    texts = {"job.sh": JOB.format(**PORTS)}
    for label in PORTS:
        texts[f"serve-{label}.sh"] = SERVER.format(
            label=label,
            install=" Before: pip install arctic-inference" if label == "suffix" else "",
            cards=CARDS[label],
            model=shlex.quote(model),
            speculative=f"  --speculative-config '{CONFIG}' \\\n" if label == "suffix" else "",
            additional=ADDITIONAL,
            port=PORTS[label],
        )
    for name in names:
        rows = [row for row in SUFFIX_BENCHMARK if row.dataset == name]
        texts["job.sh"] += LINE.format(
            config=CONFIG,
            path=shlex.quote(datasets[name]),
            limit=rows[0].num_requests,
            loads=" ".join(f"--concurrency {row.concurrency}" for row in rows),
            max_tokens=MAX_TOKENS,
            out=shlex.quote(f"results/{name}"),
        )
    written = []
    for name, text in texts.items():
        path = folder / name
        with write_atomically(path) as file:
            file.write(text.encode())
        path.chmod(0o755)
        written.append(path)
    return written
