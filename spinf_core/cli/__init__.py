"""The command line, `spinf`: one module per command. It imports the engine only when a command runs it."""
