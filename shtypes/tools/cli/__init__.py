"""The command ``shtypes``."""

from shtypes.tools.cli.app import main as main
