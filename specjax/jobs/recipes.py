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
SHARED = {  # commands that share out their work, and the options that it takes
    ("generate",): {"--prompt-file", "--out"},
    ("extract",): {"--prompt-file", "--out"},
    ("audit", "rules"): {"--out"},
}
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
        command: the words after ``specjax``, one of ``SHARED`` with options, without ``--shard``.
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
    needed = next((SHARED[one] for one in SHARED if tuple(command[: len(one)]) == one), None)
    if needed is None:
        known = ", ".join(" ".join(one) for one in SHARED)
        raise ValueError(f"only {known} have shares, got {' '.join(command)!r}.")
    if not needed <= given or "--shard" in given:
        names = " and ".join(sorted(needed, reverse=True))
        raise ValueError(f"the command needs {names}, and no --shard.")
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
