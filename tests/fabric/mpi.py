"""Open MPI between namespaces, as a library of `netsum bench`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from namespaces import namespace
from netsum.bench.libraries import World
from network import Network

COMPILER, RUN = "mpicc.openmpi", "mpirun.openmpi"
SOURCE = Path(__file__).resolve().parents[2] / "python/netsum/bench/mpi.c"
FABRIC = "10.77.0.0/16"
OPTIONS = {
    "plm_rsh_no_tree_spawn": "1",
    # Every process is on a host of its own, as far as it can see: over the links, and not through memory.
    "pml": "ob1",
    "btl": "tcp,self",
    "btl_tcp_if_include": FABRIC,
    "oob_tcp_if_include": FABRIC,
    # All hosts share this machine's cores, which Open MPI cannot know: spinning would only delay the others.
    "mpi_yield_when_idle": "1",
}


def why_no_mpi() -> str | None:
    """Why Open MPI cannot run here, or None."""
    found = all(shutil.which(program) for program in (COMPILER, RUN))
    return None if found else "needs Open MPI (make setup-mpi)"


def openmpi(network: Network, folder: Path) -> World:
    """One rank on each host of the network. folder: for the program and the way into namespaces."""
    program, agent = folder / "mpi", folder / "agent"
    subprocess.run([COMPILER, "-O2", "-o", program, SOURCE], check=True)
    places = "".join(f"{network.address[host]}) space={namespace(host)} name={host} ;;\n" for host in network.hosts)
    # A host name of its own, or Open MPI takes all hosts for this one.
    enter = 'exec ip netns exec "$space" unshare --uts sh -c "hostname $name; $*"'
    agent.write_text(f'#!/bin/sh\naddress=$1; shift\ncase "$address" in\n{places}esac\n{enter}\n')
    agent.chmod(0o755)
    hosts = ",".join(network.address[host] for host in network.hosts)
    options = [word for pair in (OPTIONS | {"plm_rsh_agent": str(agent)}).items() for word in ("--mca", *pair)]
    words = ["--allow-run-as-root", "-host", hosts, "-n", str(len(network.hosts)), *options, str(program)]
    first = network.hosts[0]
    start = ["unshare", "--uts", "sh", "-c", f'hostname {first}; exec {RUN} "$@"', RUN, *words]
    return World("openmpi", [*network.inside(first), *start], [{"TMPDIR": str(folder), "PATH": os.environ["PATH"]}])
