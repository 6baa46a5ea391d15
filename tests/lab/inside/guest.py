"""Starts a VM from its configuration as Proxmox VE would lay it out, and reads its root ports directly.

Only the keys that the lab's configurations use are known. The layout is the one of `qm showcmd`: four root ports at
1c.0 to 1c.3, hostpciN with pcie=1 on port N+1, all others behind a conventional bridge, function k of an address without
a function at 0.k, with multifunction=on on the first.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import time

from hardware import COMPLETER, DEVICES

RUN = pathlib.Path("/var/run/qemu-server")
HOME = pathlib.Path("/tmp/guest")
CONFIGS = pathlib.Path("/etc/pve/qemu-server")
PATIENCE = 120
CONVENTIONAL = ["0x10", "0x11", "0x1b", "0x1c"]    # slots on pci.0 of hostpci0 to hostpci3


def expand(host):
    """The functions that a `host` value stands for."""
    present = sorted(entry.name for entry in DEVICES.iterdir())
    found = []
    for address in host.split(";"):
        found += [name for name in present if name == address or "." not in address and name.startswith(address + ".")]
    if not found:
        raise SystemExit(f"LAB FAILED: no device {host}")
    return found


def devices(config):
    """QEMU's -device and other arguments for the lines of a configuration."""
    arguments, conventional = [], False
    for port in range(4):
        arguments += ["-device", f"pcie-root-port,id=ich9-pcie-port-{port + 1},x-speed=16,x-width=32,bus=pcie.0,"
                      f"addr=1c.{port},port={port + 1},chassis={port + 1}" + (",multifunction=on" if port == 0 else "")]
    for line in config.splitlines():
        key, _, value = line.partition(": ")
        if key == "args":
            arguments += value.split()
        if not key.startswith("hostpci"):
            continue
        index = int(key.removeprefix("hostpci"))
        host, *options = value.split(",")
        if "pcie=1" in options:
            bus, slot = f"ich9-pcie-port-{index + 1}", "0x0"
            if index >= 4:
                raise SystemExit("LAB FAILED: the lab's guests have four ports")
        else:
            bus, slot, conventional = "pci.0", CONVENTIONAL[index], True
        functions = expand(host)
        for number, function in enumerate(functions):
            many = len(functions) > 1
            arguments += ["-device", f"vfio-pci,host={function},id={key}" + (f".{number}" if many else "")
                          + f",bus={bus},addr={slot}" + (f".{number}" if many else "") + ",rombar=0"
                          + (",multifunction=on" if many and number == 0 else "")]
    if conventional:
        arguments = ["-device", "i82801b11-bridge,id=pcidmi,bus=pcie.0,addr=1e.0",
                     "-device", "pci-bridge,id=pci.0,bus=pcidmi,addr=1.0,chassis_nr=1,shpc=off", *arguments]
    return arguments


class Guest:
    """A VM that runs its firmware. It has nothing to boot from."""

    def __init__(self, vmid):
        self.socket = RUN / f"{vmid}.qmp"
        self.socket.unlink(missing_ok=True)
        config = (CONFIGS / f"{vmid}.conf").read_text().split("\n[")[0]
        # Proxmox's QEMU knows an option -id, by which a VM's process is recognised. For this one the words are a name and
        # an empty disk.
        HOME.mkdir(exist_ok=True)
        (HOME / str(vmid)).write_bytes(bytes(512))
        self.process = subprocess.Popen([
            "qemu-system-x86_64", "-name", "-id", str(vmid), "-machine", "q35", "-accel", "tcg,tb-size=16", "-m", "32", "-nodefaults", "-display", "none",
            "-no-reboot", "-qmp", f"unix:{self.socket},server=on,wait=off", *devices(config),
        ], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=HOME)
        self.pid_file = RUN / f"{vmid}.pid"
        self.pid_file.write_text(f"{self.process.pid}\n")
        os.set_blocking(self.process.stdout.fileno(), False)

    def monitor(self):
        """Connects, retrying until QEMU is up; returns a function that runs one command."""
        deadline = time.monotonic() + PATIENCE
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(PATIENCE)
            try:
                connection.connect(str(self.socket))
                break
            except OSError:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    text = (self.process.stdout.read() or b"").decode(errors="replace")
                    raise SystemExit(f"LAB FAILED: the guest did not start: {text}")
                time.sleep(0.05)
        stream = connection.makefile("rw")
        if "QMP" not in json.loads(stream.readline()):
            raise SystemExit("LAB FAILED: no greeting")

        def execute(command, **arguments):
            stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            stream.flush()
            while True:
                reply = json.loads(stream.readline())
                if "return" in reply:
                    return reply["return"]
                if "error" in reply:
                    raise SystemExit(f"LAB FAILED: {command}: {reply['error']}")

        execute("qmp_capabilities")
        return connection, execute

    def start(self):
        connection, _ = self.monitor()
        connection.close()

    def read_ports(self):
        """The widths that each root port completes, by port I/O with the guest's processors stopped.

        This is another way than that of `verify`, and needs no firmware: root ports on bus 0 have fixed addresses.
        """
        connection, execute = self.monitor()
        execute("stop")

        def word(port, offset):
            address = 1 << 31 | port["slot"] << 11 | port["function"] << 8 | offset & 0xfc
            execute("human-monitor-command", **{"command-line": f"o /w 0xcf8 {address:#x}"})
            text = execute("human-monitor-command", **{"command-line": "i /w 0xcfc"})
            return int(re.search(r"= 0x([0-9a-f]+)", text)[1], 16) >> 8 * (offset & 3)

        ports = {}
        for port in execute("query-pci")[0]["devices"]:
            if "pci_bridge" not in port:
                continue
            at = word(port, 0x34) & 0xff
            while at and word(port, at) & 0xff != 0x10:
                at = word(port, at) >> 8 & 0xff
            if not at or word(port, at) >> 20 & 0xf != 4:
                continue    # not a root port
            value = word(port, at + 0x24)
            ports[port["qdev_id"]] = [width for width, bit in COMPLETER.items() if value & bit]
        connection.close()
        return ports

    def functions(self):
        """The `id=` of every device that the guest has, with vendor and device ID."""
        def below(tree):
            for device in tree:
                yield device["qdev_id"], (device["id"]["vendor"], device["id"]["device"])
                yield from below(device.get("pci_bridge", {}).get("devices", []))
        connection, execute = self.monitor()
        found = {name: ids for bus in execute("query-pci") for name, ids in below(bus["devices"])}
        connection.close()
        return found

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        for file in (self.socket, self.pid_file):
            file.unlink(missing_ok=True)
