"""The command ``shtypes``: one file per command, and in `options`, `target` and `output` what they share."""

from shtypes.tools.cli.app import main as main
