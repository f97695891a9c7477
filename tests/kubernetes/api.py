"""A client of a Kubernetes API server: requests over kept connections, and watches."""

from __future__ import annotations

import http.client
import json
import pathlib
import ssl
import threading
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

_PLURALS = {
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
}
_CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
}


class ApiError(Exception):
    """The server's refusal."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """The API server at an address, as the owner of a bearer token sees it. Threads have a connection each."""

    def __init__(self, host: str, port: int, authority: pathlib.Path, token: str) -> None:
        self.host, self.port, self.token = host, port, token
        self.context = ssl.create_default_context(cafile=str(authority))
        self.local = threading.local()

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The parsed answer. Raises ApiError for refusals, OSError if the server is away."""
        text = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        for attempt in (1, 2):
            connection = getattr(self.local, "connection", None) or self._connect(30)
            self.local.connection = connection
            try:
                connection.request(method, path, text, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.local.connection = None
                # A kept connection may have been closed meanwhile; what was refused then was not done.
                if attempt == 2 or isinstance(error, TimeoutError):
                    raise OSError(str(error)) from error
                continue
            if response.status >= 400:
                raise ApiError(response.status, _message(answer))
            return json.loads(answer) if answer else None
        raise AssertionError("unreachable")

    def list(self, path: str) -> list[Object]:
        return list(self.request("GET", path)["items"])

    def get(self, path: str) -> Object | None:
        """The object, or None."""
        try:
            return dict(self.request("GET", path))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def delete(self, path: str, policy: str = "Background", grace: int | None = None) -> bool:
        """Whether there was something to delete."""
        options: Object = {"propagationPolicy": policy}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", path, options)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def apply(self, thing: Object) -> Object:
        """Server-side apply, as `kubectl apply --server-side`."""
        path = f"{path_of(thing)}?fieldManager=test&force=true"
        return dict(self.request("PATCH", path, thing, "application/apply-patch+yaml"))

    def create(self, thing: Object) -> Object:
        return dict(self.request("POST", path_of(thing).rpartition("/")[0], thing))

    def patch(self, path: str, body: Object) -> Object:
        return dict(self.request("PATCH", path, body, "application/merge-patch+json"))

    def watch(self, path: str, version: str) -> Iterator[Object]:
        """Events after a version, until the server closes. Raises ApiError if the version is too old."""
        connection = self._connect(3600)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
            connection.request("GET", f"{path}?watch=true&resourceVersion={version}", headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, _message(response.read()))
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context)


def path_of(thing: Object) -> str:
    """Where the API has an object."""
    kind, metadata = thing["kind"], thing["metadata"]
    version = thing["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    if kind not in _CLUSTER_WIDE:
        root = f"{root}/namespaces/{metadata['namespace']}"
    return f"{root}/{plural}/{metadata['name']}"


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:500].decode(errors="replace")
