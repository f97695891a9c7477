"""Horovod's API on netsum: `import netsum.horovod.torch as hvd` in place of `import horovod.torch as hvd`.

Operations are matched by name, in whatever order ranks call them. `requests` defines the messages between ranks,
`coordinator` (at rank 0) the order of operations, `runtime` holds a process's threads, `execution` runs an operation on
`netsum.communicator`. These modules are independent of frameworks; `torch` and `tensorflow` adapt them. The results of
Horovod's own tests and the omissions are in docs/frameworks.md.
"""
