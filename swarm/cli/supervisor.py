"""What started this program, where that is systemd: told when it is ready, alive, and about to leave.

The protocol of sd_notify(3): a line for each fact, in one datagram to the socket that the environment names.
"""

import asyncio
import contextlib
import socket

from swarm.config import notify_socket, watchdog_s


def notify(*facts: str) -> None:
    """Say facts such as ``READY=1``; nothing where nobody asked for them."""
    address = notify_socket()
    if address is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        told.send("\n".join(facts).encode())


async def keep_watchdog_quiet() -> None:
    """Say, for as long as the event loop turns, that it does."""
    every_s = watchdog_s()
    while every_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s / 2)
