"""``python -m specjax.launch --nproc N -- COMMAND``: several processes of one host, as one."""
