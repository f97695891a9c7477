"""The checks of `netsum doctor`: this machine (`machine`), the fabric (`fabric`), and a sum through it (`selftest`)."""
