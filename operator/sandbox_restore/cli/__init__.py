"""Commands for people and their tables; each command is one function in the registry of main."""
