"""Local fabrics: a controller and switches as processes on this machine.

`description` reads a fabric file, `builtin` makes the demo's, `binaries` finds the daemons, `processes` runs one
daemon, `local` runs a whole fabric. The caller that starts a fabric also stops it.
"""
