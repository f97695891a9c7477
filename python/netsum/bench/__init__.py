"""Times collectives of netsum and of other libraries: the implementation of `netsum bench`.

`cases` defines what is measured, `values` the contents of the buffers before and after, `ranks` the measuring
processes; `libraries` starts them, `measure` alternates between libraries and makes rows, `picture` draws them.
"""

from netsum.bench.cases import OPERATIONS, BenchError, Case, sizes
from netsum.bench.measure import Plan, Row, measure

__all__ = ["OPERATIONS", "BenchError", "Case", "Plan", "Row", "measure", "sizes"]
