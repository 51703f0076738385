"""The viewer: the report's page from a server on the loopback, with all predictions."""
