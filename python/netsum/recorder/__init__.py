"""The flight recorder: the last operations of every rank, written on failures, and their diagnosis.

Every group keeps its last 512 operations. With NETSUM_RECORDER=folder it writes them there when an operation or the
group fails (time-out, lost rank, mismatch, abort), and when the process gets SIGUSR1; `dump` does it at any time.
`netsum recorder FOLDER` reads the files of all ranks: `dumps` parses them, `verdict` diagnoses the cause.
"""

from netsum.recorder.dumps import Dump, Operation, RecorderError, read
from netsum.recorder.verdict import Finding, judge
from netsum.recorder.writing import closing, dump, watch

__all__ = ["Dump", "Finding", "Operation", "RecorderError", "closing", "dump", "judge", "read", "watch"]
