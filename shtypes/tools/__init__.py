"""Entry points: the command line, the pytest plugin, the demo."""
