"""Files that run a job's shares on a scheduler: a Slurm array, a Kubernetes indexed Job."""

import shlex
from collections.abc import Sequence

SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --cpus-per-task={cpus}
#SBATCH --requeue
# Each task does its share of the shards; a task that is started again skips what exists.
set -euo pipefail
srun {command} --shard "$SLURM_ARRAY_TASK_ID/{count}"
"""

KUBERNETES = """apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  backoffLimitPerIndex: 3
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: specjax
          image: {image}
          # Each pod does its share of the shards; a pod that is started again skips what exists.
          command: ["sh", "-c"]
          args:
            - |
              exec {command} --shard "$JOB_COMPLETION_INDEX/{count}"
          resources:
            requests:
              cpu: "{cpus}"
          volumeMounts:
            - name: files
              mountPath: {volume}
      volumes:
        - name: files
          persistentVolumeClaim:
            claimName: {claim}
"""
TEMPLATES = {"slurm": SLURM, "kubernetes": KUBERNETES}


def recipe(
    scheduler: str,
    command: Sequence[str],
    num_tasks: int,
    *,
    name: str = "specjax",
    cpus: int = 8,
    image: str = "specjax:latest",
    volume: str = "/files",
    claim: str = "specjax-files",
) -> str:
    """Return the file that runs ``specjax`` commands as ``num_tasks`` shares.

    Args:
        scheduler: "slurm" (a script for sbatch) or "kubernetes" (a manifest for kubectl apply).
        command: the words after ``specjax``: generate or extract, without ``--shard``.
        volume: where the pods see the shared files.
        claim: their PersistentVolumeClaim.

    Raises:
        ValueError: an unknown scheduler, or a command that cannot be shared out.
    """
    if scheduler not in TEMPLATES:
        raise ValueError(f"the scheduler must be one of {', '.join(TEMPLATES)}, got {scheduler!r}.")
    if num_tasks < 1 or cpus < 1:
        raise ValueError(f"--num-tasks and --cpus must be at least 1, got {num_tasks} and {cpus}.")
    given = {word.partition("=")[0] for word in command}
    if not command or command[0] not in ("generate", "extract"):
        raise ValueError(f"only generate and extract have shares, got {' '.join(command)!r}.")
    if not {"--prompt-file", "--out"} <= given or "--shard" in given:
        raise ValueError("the command needs --prompt-file and --out, and no --shard.")
    return TEMPLATES[scheduler].format(
        name=name,
        last=num_tasks - 1,
        count=num_tasks,
        cpus=cpus,
        image=image,
        volume=volume,
        claim=claim,
        command=shlex.join(["specjax", *command]),
    )
