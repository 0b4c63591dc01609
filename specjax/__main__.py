"""``python -m specjax``."""

from specjax.cli.app import main

if __name__ == "__main__":
    main()
