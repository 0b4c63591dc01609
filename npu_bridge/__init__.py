"""Lowering of specjax programs to torch_npu (not built yet: see CHANGELOG)."""
