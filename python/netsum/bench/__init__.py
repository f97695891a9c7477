"""Times collectives of netsum and of other libraries beside it: what `netsum bench` does.

`cases` says what is measured, `values` what the buffers hold and must hold afterwards, `ranks` are the processes that
measure, `libraries` starts them, `measure` takes turns and makes rows, `picture` draws them.
"""

from netsum.bench.cases import OPERATIONS, BenchError, Case, sizes
from netsum.bench.measure import Plan, Row, measure

__all__ = ["OPERATIONS", "BenchError", "Case", "Plan", "Row", "measure", "sizes"]
