"""The packet-level simulator from Python: configurations in, tables out.

    result = netsum.sim.run("fig10.toml", "out/fig10")
    result.summary["short_flows"]["fct_us"]["p99"]
    result.frame("flows")                      # a pandas data frame; `rows` needs no pandas

The simulation itself is the process `netsum-sim` (crates/sim); this package starts it, runs sweeps over many
configurations, and draws reports.
"""

from netsum.sim.errors import SimError
from netsum.sim.result import Result
from netsum.sim.runner import Progress, run
from netsum.sim.sweep import Sweep, sweep

__all__ = ["Progress", "Result", "SimError", "Sweep", "run", "sweep"]
