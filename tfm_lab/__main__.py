"""``python -m tfm_lab``: the command line without an installed script."""

from tfm_lab.cli.main import main

main()
