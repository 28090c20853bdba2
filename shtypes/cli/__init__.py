"""The command ``shtypes``: one file per command, and in `target` what they share."""

from shtypes.cli.app import main as main
