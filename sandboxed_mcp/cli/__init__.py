"""The command line: one module a command group, imported only when its command is run."""
