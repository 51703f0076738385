"""The output of commands: tables, lists, progress."""
