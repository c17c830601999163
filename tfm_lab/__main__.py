"""``python -m tfm_lab``: the command line without an installed script; the installed script starts here too."""

import sys


def start() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a word."""
    try:
        from tfm_lab.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
