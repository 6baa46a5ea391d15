"""Lets a paused QEMU's guest write the AtomicOps bits of that QEMU's emulated devices.

QEMU keeps three arrays for each PCI device: its configuration space, a mask of the bits to compare after migration, and a
mask of the bits that the guest may write. For DEVCAP2 and DEVCTL2 that last mask says no, so that no emulated device
can say that it completes or routes AtomicOps. `open_registers` finds the arrays in the process's memory and sets the
bits in question in the write mask. From then on the guest's kernel can give each device the registers that the
experiment needs, through sysfs, and sees them as if hardware had them.

How the arrays are found: a configuration space begins with the device's IDs, and struct PCIDevice has five pointers in a row
(config, cmask, wmask, w1cmask, used; hw/pci/pci_device.h, QEMU 5 to 11). What they point at has to look the part.
"""

import struct

EXPRESS = 0x10                  # capability ID
DEVCAP2, DEVCTL2 = 0x24, 0x28   # offsets in that capability
ROUTING_AND_COMPLETER = 0xf << 6
REQUESTER_AND_EGRESS = 0x3 << 6


class Process:
    """Another process's memory."""

    def __init__(self, pid, largest):
        """Mappings above `largest` bytes, the guest's RAM for instance, are left out."""
        self.memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)
        self.areas = []
        with open(f"/proc/{pid}/maps") as maps:
            for line in maps:
                span, mode, *_ = line.split()
                start, end = (int(x, 16) for x in span.split("-"))
                if mode.startswith("rw-p") and end - start <= largest:
                    try:
                        self.areas.append((start, self.read(start, end - start)))
                    except OSError:
                        pass    # special mappings of the kernel

    def read(self, address, length):
        self.memory.seek(address)
        data = self.memory.read(length)
        if len(data) != length:
            raise OSError(f"{address:#x}: short read")
        return data

    def write(self, address, data):
        self.memory.seek(address)
        if self.memory.write(data) != len(data):
            raise OSError(f"{address:#x}: short write")

    def find(self, needle, alignment):
        for start, data in self.areas:
            at = data.find(needle)
            while at >= 0:
                if (start + at) % alignment == 0:
                    yield start + at, data, at
                at = data.find(needle, at + 1)


def express_offset(space):
    """Where a configuration space has its PCI Express capability; None if it is no configuration space."""
    status, header = space[6], space[0x0e] & 0x7f
    if not status & 0x10 or header > 1:
        return None
    at, seen = space[0x34] & ~3, set()
    while at >= 0x40 and at not in seen:
        if space[at] == EXPRESS:
            return at
        seen.add(at)
        at = space[at + 1] & ~3
    return None


def open_registers(pid, ids, largest):
    """Opens the registers of all devices with these (vendor, device) IDs; returns how many there were of each."""
    process = Process(pid, largest)
    opened = dict.fromkeys(ids, 0)
    for vendor, device in ids:
        for config, data, at in list(process.find(struct.pack("<HH", vendor, device), 16)):
            space = data[at:at + 0x100]
            express = express_offset(space) if len(space) == 0x100 else None
            if express is None:
                continue
            for _, area, pointer in process.find(struct.pack("<Q", config), 8):
                if pointer + 40 > len(area):
                    continue
                _, compare, writable, *_ = struct.unpack_from("<5Q", area, pointer)
                try:
                    # IDs are compared and not writable; the interrupt line register always is.
                    fits = (process.read(compare, 4) == b"\xff" * 4 and process.read(writable, 4) == bytes(4)
                            and process.read(writable + 0x3c, 1) == b"\xff")
                except (OSError, ValueError, OverflowError):
                    continue
                if not fits:
                    continue
                for offset, size, bits in ((DEVCAP2, 4, ROUTING_AND_COMPLETER), (DEVCTL2, 2, REQUESTER_AND_EGRESS)):
                    address = writable + express + offset
                    mask = int.from_bytes(process.read(address, size), "little") | bits
                    process.write(address, mask.to_bytes(size, "little"))
                opened[vendor, device] += 1
                break
    return opened
