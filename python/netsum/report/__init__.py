"""`netsum report`: where the time of a job's steps went, and what would make them shorter.

With NETSUM_REPORT=folder each rank writes one bounded file there: `recording` follows its groups, `record` holds what
they did, `watching` asks the controller at rank 0. `netsum report FOLDER` reads the files of all ranks: `files` checks
them, `repeating` finds steps in their calls, `steps` and `model` say what a step would take with other sums, `network`
what trees and rings load on links, `advice` what would help. `summary` has all figures; `words`, `page` and `drawing`
show them; `compare` tells two jobs apart.
"""
