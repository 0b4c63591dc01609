"""``specjax bench trees``: a drafter's chain against its trees, at equal verified tokens.

On one half of the prompts a wide tree measures the acceptance rate of the child of each rank, by
level, from which ``theory.tree_optimal`` makes the best fixed tree. The chain, that tree and a
dynamic tree of each round's likeliest nodes are compared on the other half. Tokens per round do not
depend on the machine; whether a tree is also faster does: ``specjax bench costs`` times its rounds.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from specjax import theory
from specjax.bench.report import Row, compare, write_rows
from specjax.bench.rounds import tokens_per_round
from specjax.bundled import prompts
from specjax.drafters.tree import Path as NodePath
from specjax.drafters.tree import Tree, fixed, from_parents
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.options.trees import SIZES, to_text
from specjax.engine.outputs import RequestOutput

WIDE = 6, 3, 2  # children by level of the tree that measures


def bench_trees(
    model: str,
    speculative_config: Mapping[str, Any],
    json_file: Path | None,
    *,
    num_nodes: int = 7,
    max_tokens: int = 64,
    num_prompts: int | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the tokens per round of three drafts of ``num_nodes`` tokens.

    ``speculative_config`` chooses the drafter; its K and its tree are replaced. Raises ValueError
    for a bad model or config, or for a method that drafts no trees.
    """
    console = console or Console(highlight=False)
    replaced = ("num_speculative_tokens", "speculative_token_tree", "tree")
    drafter = {name: value for name, value in speculative_config.items() if name not in replaced}
    texts = [one["turns"][0] for one in prompts()][:num_prompts]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

    def complete(shape: dict[str, Any], some: Sequence[str]) -> list[RequestOutput]:
        llm = LLM(model, speculative_config={**drafter, **shape})
        return llm.generate(some, params)

    measuring = fixed(every_path(WIDE))
    config = {"speculative_token_tree": to_text(measuring)}
    SpeculativeConfig.from_dict({**drafter, **config})
    rates = acceptance_by_rank(measuring, complete(config, texts[::2]))
    for level, row in enumerate(rates, start=1):
        listed = " ".join(f"{rate:.3f}" for rate in row if rate > 0)
        console.print(
            f"level {level}: children of rank 0, 1, ... are right in {listed}", soft_wrap=True
        )
    best = from_parents(theory.tree_optimal(rates, num_nodes + 1).parents.tolist())
    top_k = max(best.top_k, 2)
    likeliest = dict(zip(SIZES, (best.depth, top_k, num_nodes), strict=True))
    shapes: dict[str, dict[str, Any]] = {
        "chain": {"num_speculative_tokens": num_nodes},
        "fixed tree": {"speculative_token_tree": to_text(best)},
        "likeliest nodes": {"tree": likeliest},
    }
    found = {name: tokens_per_round(complete(shape, texts[1::2])) for name, shape in shapes.items()}
    rows = [
        compare(f"tokens per round, {name}", found[name], "", found["chain"], "chain",
                at_least=None if name == "chain" else 1)
        for name in shapes
    ]  # fmt: skip
    for (name, shape), row in zip(shapes.items(), rows, strict=True):
        option = json.dumps(shape)[1:-1]
        console.print(f"{name}: {row.value:.3f} tokens per round; {option}", soft_wrap=True)
    if json_file is not None:
        write_rows(rows, json_file)
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    return rows


def every_path(children: Sequence[int]) -> list[NodePath]:
    """Return all nodes of a tree with the given number of children at each level."""
    levels = [range(number) for number in children]
    return [
        path for depth in range(1, len(levels) + 1) for path in itertools.product(*levels[:depth])
    ]


def acceptance_by_rank(
    tree: Tree, outputs: Sequence[RequestOutput]
) -> Float[np.ndarray, "depth top_k"]:
    """Return the conditional acceptance rate of the child of each rank, [depth, top_k].

    ``outputs`` were drafted by the fixed ``tree``. 0 for a level that no round reached.
    """
    assert tree.paths is not None
    number = {path: i for i, path in enumerate(tree.paths)}
    reached, right = np.zeros(tree.depth), np.zeros((tree.depth, tree.top_k))
    for output in outputs:
        for one in output.outputs:
            text = [*output.prompt_token_ids, *one.token_ids]
            for committed, draft in one.drafts:
                path: NodePath = ()
                for level, token in enumerate(text[committed : committed + tree.depth]):
                    children = [(*path, rank) for rank in range(tree.top_k)]
                    seen = {draft[number[child]]: child for child in children if child in number}
                    if not seen:
                        break
                    reached[level] += 1
                    if token not in seen:
                        break
                    path = seen[token]
                    right[level, path[-1]] += 1
    return right / np.maximum(reached, 1)[:, None]
