"""A fabric's file from what is there: interfaces, cables by LLDP, rates, paths and whether they keep ECN.

`probe` is what one machine knows, `paths` what probes see on their way; both run on each machine. `collect` runs them
on all machines, `survey` joins their answers into a fabric with its faults, `compare` says what differs from a file.
"""
