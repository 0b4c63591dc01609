"""Compare engines and servers: the same prompts, arms that take turns, intervals on the ratio."""
