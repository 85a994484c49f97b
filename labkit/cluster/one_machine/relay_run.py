"""The cables between the nodes, as a program that is given its settings, ``wire.json``.

Each node has a TUN device, whose packets this process reads. A packet leaves its node when all
before it have left, at the node's rate, and arrives so much later. SIGHUP: the rates have changed.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000
PACKET_BYTES = 9100
AT_ONCE = 64
"""packets read from one node before the others have their turn"""


def tun(space: str, address: str) -> int:
    """Opens a new TUN device inside a namespace, with an address; its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"can't enter the namespace {space}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wire0", IFF_TUN_NO_PI))
    finally:
        libc.setns(here, CLONE_NEWNET)
        os.close(here)
        os.close(there)
    subprocess.run(["ip", "-n", space, "addr", "add", f"{address}/24", "dev", "wire0"], check=True)
    subprocess.run(["ip", "-n", space, "link", "set", "wire0", "up"], check=True)
    return device


def destination(packet: bytes) -> int | None:
    """Which node a packet goes to, by the last byte of its IPv4 address; None for anything else."""
    return packet[19] - 1 if len(packet) >= 20 and packet[0] >> 4 == 4 else None


class Relay:
    """Packets under way between nodes."""

    def __init__(self, wire: dict, devices: list[int]) -> None:
        self.wire = wire
        self.devices = devices
        self.free_at = [0.0] * len(devices)  # when a node's cable is through with the last packet
        self.under_way: list[tuple[float, int, int, bytes]] = []  # when, number, to, packet
        self.count = 0

    def step(self) -> None:
        """Waits for the next packet that leaves or arrives, and carries what is due."""
        wait_s = None
        if self.under_way:
            wait_s = max(0.0, self.under_way[0][0] - time.monotonic())
        readable, _, _ = select.select(self.devices, [], [], wait_s)
        for source, device in enumerate(self.devices):
            if device in readable:
                self.read(source, device)
        while self.under_way and self.under_way[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(self.under_way)
            # its queue is full: lost, as on a real cable; TCP sends it again
            with contextlib.suppress(OSError):
                os.write(self.devices[to], packet)

    def read(self, source: int, device: int) -> None:
        """Takes what a node has sent."""
        now = time.monotonic()
        for _ in range(AT_ONCE):
            try:
                packet = os.read(device, PACKET_BYTES)
            except BlockingIOError:
                return
            to = destination(packet)
            if to is None or not 0 <= to < len(self.devices):
                continue
            rate = self.wire["bit_per_s"][source]
            takes_s = len(packet) * 8 / rate if rate else 0.0
            self.free_at[source] = max(self.free_at[source], now) + takes_s
            self.count += 1
            arrives_at = self.free_at[source] + self.wire["delay_s"]
            heapq.heappush(self.under_way, (arrives_at, self.count, to, packet))


def main(path: str) -> None:
    """Carries packets until it is ended."""
    file = Path(path)
    wire = json.loads(file.read_text())
    spaces = wire["spaces"]
    devices = [tun(space, f"{wire['network']}.{index + 1}") for index, space in enumerate(spaces)]
    relay = Relay(wire, devices)
    signal.signal(signal.SIGHUP, lambda *_: relay.wire.update(json.loads(file.read_text())))
    (file.parent / "relay.ready").touch()
    while True:
        relay.step()


if __name__ == "__main__":
    main(sys.argv[1])
