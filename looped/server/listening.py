"""Sockets that a server will listen at: taken before its model is loaded, silent until it is."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from looped.errors import LoopedError

REASONS = {
    errno.EADDRINUSE: "the port is in use; stop what has it, or choose another with --port",
    errno.EADDRNOTAVAIL: "the address is not one of this machine's; give one that is with --host",
    errno.EACCES: "this user may not have the port; choose one above 1023 with --port",
}
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What an address of a kind that this machine does not have leads to."""


@contextmanager
def taken_sockets(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets that have all addresses of a host; clients are refused until they listen.

    Args:
        host: an address or a name of this machine.
        port: 0 for a free one.

    Raises:
        LoopedError: there is no such address here, or somebody else has the port.
    """
    taken: list[socket.socket] = []
    try:
        addresses = _addresses(host, port)
        for family, address in addresses:
            same_port = port or (taken[0].getsockname()[1] if taken else 0)
            try:
                taken.append(_bound(family, (address[0], same_port, *address[2:])))
            except OSError as error:
                # `localhost` may have an IPv6 address where the machine has none.
                if error.errno in ABSENT and (taken or address != addresses[-1][1]):
                    continue
                reason = REASONS.get(error.errno or 0) or os.strerror(error.errno or 0)
                raise LoopedError(f"cannot listen at {url_host(host)}:{port}: {reason}") from None
        yield taken
    finally:
        for one in taken:
            one.close()


def allow_listening(taken: list[socket.socket]) -> None:
    """To be called right before they listen: connections that linger when the server has ended do
    not keep the next one from the port then."""
    for one in taken:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def url_host(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "that is no name"
        raise LoopedError(
            f"cannot listen at --host {host}: expected an address or a name of this machine; "
            f"{reason}"
        ) from None
    return list(dict.fromkeys((entry[0], entry[4]) for entry in found))


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    # Two sockets that allow reuse may have the same port until one of them listens: servers that
    # load at the same time would notice too late. So reuse is asked for only where it is needed,
    # which is for connections of an earlier server that linger.
    try:
        return _bound_so(family, address, reuses=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return _bound_so(family, address, reuses=True)


def _bound_so(family: int, address: tuple[Any, ...], *, reuses: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
        if family == socket.AF_INET6:  # the same port of IPv4 may be another socket's
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except BaseException:
        made.close()
        raise
    return made
