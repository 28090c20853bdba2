"""What is run from outside: the command line, the pytest plugin, the demo."""
