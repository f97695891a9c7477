"""`netsum report`: where the time of a job's steps went, and what would make them shorter.

With NETSUM_REPORT=folder each rank writes one bounded file there: `recording` follows its groups, `record` holds what
they did, `watching` asks the controller at rank 0. `netsum report FOLDER` reads the files of all ranks: `files` checks
them, `steps` and `network` are the model of a step and of the links, `advice` predicts what would help, `summary` has
all figures, `page` and `words` show them, `compare` tells two jobs apart.
"""
