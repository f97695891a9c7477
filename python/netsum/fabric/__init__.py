"""Local fabrics: a controller and switches as processes on this machine.

`description` reads a fabric file, `builtin` makes the demo's, `binaries` finds the daemons, `processes` runs one of
them, `local` runs them all. Whoever starts a fabric here also stops it.
"""
