"""Run by ``test_on_ray`` in a network namespace: complete a file by two actors, and kill one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from specjax.jobs import folder, prompt_file
from specjax.jobs.on_ray import complete_on_ray
from specjax.jobs.worker import Setting


def main(model: str, prompts: Path, out: Path) -> None:
    """Complete ``prompts`` into ``out``; after the first shard kill an actor that works."""
    file = prompt_file.read_file(prompts, 2)
    job = folder.Job("0", "m", file.sha256, file.num_prompts, 2, 1, {})
    folder.open_folder(out, job)
    sampling = {"temperature": 0.8, "max_tokens": 12}
    setting = Setting(model, {}, sampling, file, out, job.key)
    killed, shards = [], []
    for _, done in complete_on_ray(setting, folder.missing(out, job), 2):
        shards.append(done.shard)
        if not killed:
            listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True)
            pids = [int(s.split()[0]) for s in listed.stdout.splitlines() if "ray::Worker" in s]
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
    folder.merge(out)
    print(json.dumps({"killed": killed, "shards": shards}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
