"""Services of the cluster: what reaches a Service's address goes on to one of its pods, as by kube-proxy."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

from api import Api, ApiError, Object

REFRESH_S = 0.3


class Proxy:
    """Runs in a thread until `stop`. `pods` gives the cluster's pods."""

    def __init__(self, api: Api, pods: Callable[[], list[Object]]) -> None:
        self.api, self.pods = api, pods
        self.services: list[Object] = []
        self.servers: dict[tuple[str, int], asyncio.Server] = {}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(10)

    def names(self) -> dict[str, str]:
        """What cluster DNS would answer for Services."""
        return {
            f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc": service["spec"]["clusterIP"]
            for service in self.services
            if _has_address(service)
        }

    async def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                self.services = await asyncio.to_thread(self.api.list, "/api/v1/services")
            except (ApiError, OSError):
                await asyncio.sleep(REFRESH_S)
                continue
            for service in filter(_has_address, self.services):
                for port in service["spec"]["ports"]:
                    await self._serve(service["spec"]["clusterIP"], port["port"])
            await asyncio.sleep(REFRESH_S)
        for server in self.servers.values():
            server.close()

    async def _serve(self, address: str, port: int) -> None:
        if (address, port) in self.servers or port == 6443:
            return

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(address, port, reader, writer)

        self.servers[address, port] = await asyncio.start_server(accept, address, port)

    async def _forward(
        self, address: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            place = self._place(address, port)
            if place is None:
                return
            other_reader, other_writer = await asyncio.open_connection(*place)
            await asyncio.gather(_pipe(reader, other_writer), _pipe(other_reader, writer))
        except (OSError, asyncio.CancelledError):
            # A pod is away, or the proxy ends.
            pass
        finally:
            writer.close()

    def _place(self, address: str, port: int) -> tuple[str, int] | None:
        """A pod behind a Service, and its port."""
        for service in self.services:
            spec = service["spec"]
            if spec.get("clusterIP") != address or "selector" not in spec:
                continue
            target = next(p.get("targetPort", port) for p in spec["ports"] if p["port"] == port)
            pods = [pod for pod in self.pods() if _is_behind(service, pod)]
            if pods:
                pod = random.choice(pods)
                return pod["status"]["podIP"], _number(pod, target)
        return None


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def _has_address(service: Object) -> bool:
    return service["spec"].get("clusterIP", "None") != "None"


def _is_behind(service: Object, pod: Object) -> bool:
    metadata, labels = pod["metadata"], pod["metadata"].get("labels", {})
    return (
        metadata["namespace"] == service["metadata"]["namespace"]
        and all(labels.get(key) == value for key, value in service["spec"]["selector"].items())
        and "deletionTimestamp" not in metadata
        and pod.get("status", {}).get("phase") == "Running"
    )


def _number(pod: Object, target: str | int) -> int:
    if isinstance(target, int):
        return target
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    return int(next(port["containerPort"] for port in ports if port["name"] == target))
