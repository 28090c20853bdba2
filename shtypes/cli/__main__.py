"""``python -m shtypes.cli``, where the command is not on the path."""

from shtypes.cli.app import main

main()
