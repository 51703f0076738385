"""What tests share: fakes, tiny models, invented predictions, a server, the installed program."""
