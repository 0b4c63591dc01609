"""A round updates caches in place: the compiled program holds no second one."""

import re
from typing import Any

import jax

from specjax.core import decode
from specjax.core.types import Engine
from specjax.testing import harness as h
from specjax.testing.form import require
from specjax.testing.subject import Subject
from specjax.verify.walk import walk

SMALL, LARGE = 512, 4096  # capacities
LEAST = 4 * 2 * LARGE * 8  # elements of one leaf of the target's cache, at the larger one
NAMES = {"float32": "f32", "int32": "s32", "bfloat16": "bf16", "uint16": "u16", "float16": "f16"}


def in_place(subject: Subject) -> None:
    """Check that a round updates caches in place: the compiled program holds no second one."""
    small, large = (compiled(subject, capacity) for capacity in (SMALL, LARGE))
    text = large.as_text() or ""
    leaf = f"f32[4,2,{LARGE},8]"  # of the target's cache
    require(leaf in text, f"the compiled program has no {leaf}")
    for name in {leaf, *large_leaves(subject)}:
        found = re.findall(rf"= {re.escape(name)}\S* (copy|select|concatenate)\(", text)
        require(not found, f"the compiled round has a {found and found[0]} of a whole {name}")
    # scratch memory that grows with the capacity can only be such a copy
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (small, large)]
    grown, most = sizes[1] - sizes[0], 4 * LEAST  # bytes of a leaf
    require(
        grown < most,
        f"the compiled round needs {grown} bytes more for {LARGE} positions than for {SMALL}: it "
        "copies a cache. Write with .at[].set, and do not keep the old array",
    )


def compiled(subject: Subject, capacity: int) -> Any:
    """Return the compiled decode loop for caches of this capacity."""
    engine = Engine(subject.target, subject.drafter, walk, 64)
    laid_out = h.pack(h.random_rows(4, seed=1), capacity, lean=True)
    state = jax.eval_shape(
        lambda params: decode.init_state(engine, params, *laid_out), subject.params
    )
    generate = jax.jit(decode.generate, static_argnums=(0, 5), donate_argnums=2)
    return generate.lower(engine, subject.params, state, 8, 1, 8).compile()


def large_leaves(subject: Subject) -> set[str]:
    """Return the large leaves of the drafter's state, as XLA's types."""
    state = jax.eval_shape(
        lambda params: subject.drafter.init(params, 4, LARGE), subject.params.draft
    )
    big = [leaf for leaf in jax.tree.leaves(state) if leaf.size >= LEAST]
    return {
        f"{NAMES[str(leaf.dtype)]}[{','.join(map(str, leaf.shape))}]"
        for leaf in big
        if str(leaf.dtype) in NAMES
    }
