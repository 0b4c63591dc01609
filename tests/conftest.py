"""What every test runs under: shapes checked, rank promotion refused, one compile cache."""

import jax
from jaxtyping import install_import_hook

install_import_hook("specjax", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
