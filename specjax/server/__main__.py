"""``python -m specjax.server --model MODEL ...``: ``specjax serve`` in vLLM's older words."""

import sys

from specjax.cli.app import main

if __name__ == "__main__":
    sys.argv[1:] = ["serve", *sys.argv[1:]]
    main()
