"""Files of many prompts, completed shard by shard: here, by a scheduler's tasks, or by Ray.

The files are the truth: a shard's file appears whole or not at all, and what exists is skipped. So
any number of processes may work on one folder, be killed, and be started again.
"""
