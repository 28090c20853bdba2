"""The plugin for mypy, as ``plugins = ["shtypes.mypy_plugin"]`` names it: sharding errors before anything runs."""

from __future__ import annotations

from shtypes.editor.mypy.plugin import ShtypesPlugin


def plugin(version: str) -> type[ShtypesPlugin]:
    """The class of the plugin, for a version of mypy."""
    return ShtypesPlugin
