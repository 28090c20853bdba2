"""``python -m shtypes``, where the command is not on the path."""

from shtypes.tools.cli.app import main

main()
