"""What every test runs under: shapes checked, rank promotion refused, one compile cache."""

import jax
from jaxtyping import install_import_hook

install_import_hook("specjax", "beartype.beartype")

from specjax.compile_cache import enable_compile_cache  # noqa: E402 (after the hook)

jax.config.update("jax_numpy_rank_promotion", "raise")
enable_compile_cache()
