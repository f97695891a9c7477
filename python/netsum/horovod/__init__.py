"""Horovod's API on netsum: `import netsum.horovod.torch as hvd` in place of `import horovod.torch as hvd`.

Operations are matched by name, in whatever order ranks call them. `requests` says what ranks tell each other,
`coordinator` (at rank 0) decides what runs next, `runtime` holds a process's threads, `execution` runs an operation on
`netsum.communicator`. Nothing here knows a framework; `torch` and `tensorflow` do. What passes of Horovod's own tests,
and what is left out: docs/frameworks.md.
"""
