"""Checks of a fabric that should be running."""

import socket
import time
from pathlib import Path

from netsum import _core
from netsum.doctor.check import Check, fail, ok, warn
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric, alive_switches, controller_status
from netsum.fabric.sockets import check_free, is_local, split_address
from netsum.reports import ControllerStatus

SOON_DAYS = 30


def addresses_free(fabric: LocalFabric) -> list[Check]:
    """For a fabric that is not running: whether its local addresses are free, or which process holds them."""
    wanted = [(fabric.description.controller, socket.SOCK_STREAM, "controller")]
    wanted += [(switch.address, socket.SOCK_DGRAM, f"switch {switch.name}") for switch in fabric.description.switches]
    found = []
    for address, kind, what in wanted:
        try:
            if is_local(split_address(address)[0]):
                check_free(address, kind, what)
        except FabricError as error:
            found.append(fail("addresses", str(error), "stop that process, or change the fabric file"))
    return found or [ok("addresses", f"all {len(wanted)} free or on other machines")]


def credentials_valid(folder: str) -> Check:
    """Whether the certificates in a folder can be used, and for how long."""
    try:
        identity, end = _core.credentials(Path(folder))
    except _core.CredentialsError as error:
        return fail("credentials", str(error), "make or renew them by `netsum ca`, or correct NETSUM_CREDENTIALS")
    days = int(end - time.time()) // (24 * 3600)
    found = f"{identity}, valid for {days} days"
    if days < SOON_DAYS:
        return warn("credentials", found, f"renew them by `netsum ca renew {folder}`")
    return ok("credentials", found)


def controller_and_switches(
    address: str, credentials: str | None = None
) -> tuple[list[Check], ControllerStatus | None]:
    """Whether the controller answers and counts its switches as alive; and its status, if it answers."""
    try:
        status = controller_status(address, credentials=credentials)
    except FabricError as error:
        return [fail("controller", str(error), "start it, or correct NETSUM_CONTROLLER")], None
    checks = [ok("controller", f"{address} answers, fabric '{status['fabric']}', version {status['version']}")]
    alive = alive_switches(status)
    for switch in status["switches"]:
        text = f"{switch['name']} at {switch['address']}"
        role = switch["role"]
        if switch["name"] in alive:
            checks.append(ok(role, f"{text} is up, {switch['memory_bytes'] >> 20} MiB"))
        else:
            program = "netsum-switch --role server" if role == "server" else "netsum-switch"
            advice = f"start it: {program} --fabric FILE --name {switch['name']}, and read its log"
            checks.append(fail(role, f"{text} is {switch['state']}", advice))
    return checks, status
