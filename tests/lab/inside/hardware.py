"""The host's PCI functions, and their AtomicOps registers through sysfs."""

import os
import pathlib

DEVICES = pathlib.Path("/sys/bus/pci/devices")

ROUTING = 1 << 6                                # DEVCAP2
COMPLETER = {32: 1 << 7, 64: 1 << 8, 128: 1 << 9}
REQUESTER, EGRESS_BLOCKING = 1 << 6, 1 << 7     # DEVCTL2

# Names for the places in the tree of ../host.py: device and function from the root bus down.
PLACES = {
    "port1": "1c.0", "gpu1": "1c.0 00.0", "audio1": "1c.0 00.1",
    "port2": "1c.1", "gpu2": "1c.1 00.0", "audio2": "1c.1 00.1",
    "port3": "1c.2", "up": "1c.2 00.0",
    "down0": "1c.2 00.0 00.0", "gpu3": "1c.2 00.0 00.0 00.0", "audio3": "1c.2 00.0 00.0 00.1",
    "down1": "1c.2 00.0 01.0", "single": "1c.2 00.0 01.0 00.0",
    "port4": "1c.3", "pf": "1c.3 00.0",
    "port5": "1c.4", "bridge": "1c.4 00.0", "conventional": "1c.4 00.0 01.0",
    "port6": "1c.5", "plain": "1c.5 00.0",
}
PORTS = ["port1", "port2", "port3", "port4", "port5", "port6"]
SWITCH = ["up", "down0", "down1"]
# What can be passed; the VFs come to be in `prepare`.
ENDPOINTS = ["gpu1", "audio1", "gpu2", "audio2", "gpu3", "audio3", "single", "plain", "conventional"]


class Function:
    """One function with its registers. Registers are only there in version 2 of the capability."""

    def __init__(self, address):
        self.address = address
        self.config = os.open(DEVICES / address / "config", os.O_RDWR)
        self.express = self._find_express()

    def _find_express(self):
        at = self.read(0x34, 1) if self.read(6, 2) & 0x10 else 0
        while at:
            if self.read(at, 1) == 0x10:
                return at if self.read(at + 2, 2) & 0xf >= 2 else None
            at = self.read(at + 1, 1) & ~3
        return None

    def read(self, offset, size):
        return int.from_bytes(os.pread(self.config, size, offset), "little")

    def change(self, offset, size, clear, bits):
        value = self.read(offset, size) & ~clear | bits
        os.pwrite(self.config, value.to_bytes(size, "little"), offset)
        got = self.read(offset, size)
        if got != value:
            raise SystemExit(f"LAB FAILED: {self.address}: wrote {value:#x} at {offset:#x}, read {got:#x}")

    def set(self, completes=(), routes=False, requests=False, blocks=False):
        """Gives the function these AtomicOps bits, and only these."""
        capabilities = sum(COMPLETER[width] for width in completes) | (ROUTING if routes else 0)
        control = (REQUESTER if requests else 0) | (EGRESS_BLOCKING if blocks else 0)
        self.change(self.express + 0x24, 4, ROUTING | sum(COMPLETER.values()), capabilities)
        self.change(self.express + 0x28, 2, REQUESTER | EGRESS_BLOCKING, control)

    def requests(self):
        """Requester enable; None without the register."""
        return bool(self.read(self.express + 0x28, 2) & REQUESTER) if self.express else None


def address_at(place):
    path = pathlib.Path("/sys/devices/pci0000:00")
    for step in place.split():
        found = [entry for entry in path.iterdir() if entry.name[0:4].isdigit() and entry.name.endswith(":" + step)]
        if len(found) != 1:
            raise SystemExit(f"LAB FAILED: nothing at {place}: {path} has {found}")
        path = found[0]
    return path.name


def bind(address, driver):
    device = DEVICES / address
    (device / "driver_override").write_text(driver)
    if (device / "driver").exists():
        (device / "driver/unbind").write_text(address)
    pathlib.Path("/sys/bus/pci/drivers_probe").write_text(address)
    if not (device / "driver").exists() or (device / "driver").resolve().name != driver:
        raise SystemExit(f"LAB FAILED: {address} does not take the driver {driver}")


def prepare():
    """Makes the VFs, gives everything that can be passed to vfio-pci; returns the functions by name."""
    functions = {name: Function(address_at(place)) for name, place in PLACES.items()}
    pf = functions["pf"].address
    (DEVICES / pf / "sriov_drivers_autoprobe").write_text("0")
    bind(pf, "pci-pf-stub")
    (DEVICES / pf / "sriov_numvfs").write_text("2")
    for index in (0, 1):
        functions[f"vf{index}"] = Function((DEVICES / pf / f"virtfn{index}").resolve().name)
    for name in [*ENDPOINTS, "vf0", "vf1"]:
        bind(functions[name].address, "vfio-pci")
    return functions


def reset(functions):
    """Everything as good as it can be with 32 and 64 bit: the ground that each setting starts from."""
    for name, function in functions.items():
        if function.express is None or name in ("vf0", "vf1", "bridge"):
            continue
        if name in SWITCH:
            function.set(routes=True)
        else:
            function.set(completes=(32, 64))
