"""A small blocking client of the API server, with connections that are kept open."""

import contextlib
import http.client
import json
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.testbed.errors import ApiError, TestbedError

_PAGE = 500
"""Objects per page of a list."""


class Api:
    """Requests to one API server as one user; safe to use from several threads.

    A request on a kept connection that the server had closed meanwhile is sent once more on a new
    one.
    """

    def __init__(self, server: str, *, ca: Path, token: str, timeout: float = 30.0) -> None:
        """Talk to `server` (a URL) whose certificate `ca` signed; `timeout` is seconds per read."""
        address = urlsplit(server)
        self._host = address.hostname or ""
        self._port = address.port or 443
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._token = token
        self._timeout = timeout
        self._idle: deque[http.client.HTTPSConnection] = deque()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send a request and return the parsed JSON of the answer, or its text when it is not JSON.

        `body` is sent as JSON. For a PATCH, `content_type` names the kind of patch, such as
        `application/merge-patch+json`.

        Raises ApiError for an answer of 400 or above, TestbedError when the server is not there.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        status, answer = self._exchange(method, path, data, headers)
        if status >= 400:
            raise _api_error(method, path, status, answer)
        try:
            return json.loads(answer)
        except ValueError:
            return answer.decode(errors="replace")

    def get(self, path: str) -> Any:
        """GET `path`; errors as for `request`."""
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Any:
        """POST `body` to `path`; errors as for `request`."""
        return self.request("POST", path, body=body)

    def merge(self, path: str, body: object) -> Any:
        """Send a JSON merge patch; errors as for `request`."""
        return self.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def strategic(self, path: str, body: object) -> Any:
        """Send a strategic merge patch, which merges lists such as conditions by their key."""
        kind = "application/strategic-merge-patch+json"
        return self.request("PATCH", path, body=body, content_type=kind)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> Any:
        """DELETE `path`; `grace_seconds` overrides the object's own grace period."""
        body = {"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else None
        return self.request("DELETE", path, body=body)

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list page by page; `query` such as `labelSelector='a=b'`."""
        token = ""
        while True:
            more: Mapping[str, str] = {**query, "limit": str(_PAGE), "continue": token}
            page = self.get(f"{path}?{urlencode(more)}")
            yield from page.get("items") or ()
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def close(self) -> None:
        """Close the connections that are not in use; a later request opens a new one."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the answer."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._send(self._connect(), method, path, data, headers)
        try:
            return self._send(connection, method, path, data, headers)
        except TestbedError:
            self.close()
            return self._send(self._connect(), method, path, data, headers)

    def _connect(self) -> http.client.HTTPSConnection:
        """Return a connection that is opened with its first request."""
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._tls
        )

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        """Send one request on a connection, which is kept for the next one if all went well."""
        try:
            connection.request(method, path, body=data, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._absent(error) from error
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer.status, body

    def _absent(self, error: Exception) -> TestbedError:
        return TestbedError(f"no answer from https://{self._host}:{self._port}: {error!r}")


def _api_error(method: str, path: str, status: int, answer: bytes) -> ApiError:
    """Return the error for an answer of 400 or above, with the server's own words."""
    reason, words = "", answer.decode(errors="replace")[:500]
    with contextlib.suppress(ValueError, AttributeError):
        parsed = json.loads(answer)
        reason, words = parsed.get("reason", ""), parsed.get("message", words)
    return ApiError(f"{method} {path}: {status} {words}", status=status, reason=reason)
