#!/usr/bin/env python3
"""Boots the lab's host, a q35 machine under software emulation, and waits for what it finds out.

    host.py DIRECTORY SHARE [SECONDS]

DIRECTORY is what `rootfs` made. SHARE becomes /mnt in the host; the host runs SHARE/inside/init and writes its results
there. Lines of the console that begin with LAB are passed on. The exit status is 0 if the host said that all is well.
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from registers import open_registers

RAM = 1280 << 20
SILENCE = 150   # seconds; booting takes a third of that, a setting a tenth

# The host's PCI Express tree, and how many functions of each kind it has. inside/hardware.py names the places.
TREE = """
pcie-root-port,id=port1,chassis=1,addr=1c.0,multifunction=on
pcie-root-port,id=port2,chassis=2,addr=1c.1
pcie-root-port,id=port3,chassis=3,addr=1c.2
pcie-root-port,id=port4,chassis=4,addr=1c.3
pcie-root-port,id=port5,chassis=5,addr=1c.4
pcie-root-port,id=port6,chassis=6,addr=1c.5
bochs-display,bus=port1,addr=0.0,multifunction=on,romfile=
virtio-sound-pci,audiodev=silent,bus=port1,addr=0.1
bochs-display,bus=port2,addr=0.0,multifunction=on,romfile=
virtio-sound-pci,audiodev=silent,bus=port2,addr=0.1
x3130-upstream,id=up,bus=port3
xio3130-downstream,id=down0,bus=up,chassis=10,addr=0
xio3130-downstream,id=down1,bus=up,chassis=11,addr=1
bochs-display,bus=down0,addr=0.0,multifunction=on,romfile=
virtio-sound-pci,audiodev=silent,bus=down0,addr=0.1
nvme,serial=single,bus=down1
igb,bus=port4,romfile=
pcie-pci-bridge,id=bridge,bus=port5
e1000,bus=bridge,addr=1,romfile=
nvme,serial=plain,bus=port6
""".split()

IDS = {
    (0x1b36, 0x000c): 6,    # pcie-root-port
    (0x104c, 0x8232): 1,    # x3130-upstream
    (0x104c, 0x8233): 2,    # xio3130-downstream
    (0x1234, 0x1111): 3,    # bochs-display
    (0x1af4, 0x1059): 3,    # virtio-sound-pci
    (0x1b36, 0x0010): 2,    # nvme
    (0x8086, 0x10c9): 1,    # igb
}


def start(directory, share, monitor):
    root = directory / "root"
    library = root / "usr/lib/x86_64-linux-gnu"
    kernel = max((root / "boot").glob("vmlinuz-*"))
    version = kernel.name.removeprefix("vmlinuz-")
    devices = [argument for device in TREE for argument in ("-device", device)]
    # The QEMU out of the root file system, with its own libraries: this machine's may be too old for igb.
    return subprocess.Popen([
        library / "ld-linux-x86-64.so.2", "--library-path", library, root / "usr/bin/qemu-system-x86_64",
        "-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios",
        "-machine", "q35,accel=tcg,kernel-irqchip=split", "-cpu", "max", "-smp", "2", "-m", str(RAM >> 20),
        "-nodefaults", "-display", "none", "-no-reboot", "-S", "-audiodev", "none,id=silent",
        "-device", "intel-iommu,intremap=on,caching-mode=on",
        "-serial", f"file:{share}/console.log", "-monitor", f"unix:{monitor},server=on,wait=off",
        "-kernel", kernel, "-initrd", kernel.with_name(f"initrd.img-{version}"),
        "-append", "root=/dev/vda rw init=/lab-init console=ttyS0 quiet intel_iommu=on",
        "-drive", f"file={directory}/host.img,format=raw,if=none,id=disk,snapshot=on",
        "-device", "virtio-blk-pci,drive=disk,addr=3",
        "-fsdev", f"local,id=lab,path={share},security_model=none",
        "-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab,addr=4",
        *devices,
    ], stdin=subprocess.DEVNULL)


def release(process, monitor):
    """Opens the registers, then lets the paused machine go."""
    while not monitor.exists():
        if process.poll() is not None:
            sys.exit("lab: the host's QEMU did not start")
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(monitor))

        def until(text, seen=b""):
            while text not in seen:
                more = connection.recv(4096)
                if not more:
                    sys.exit("lab: the host's QEMU has gone")
                seen += more

        until(b"(qemu)")    # only now all devices are there
        opened = open_registers(process.pid, IDS, largest=RAM - 1)
        if opened != IDS:
            sys.exit(f"lab: registers found {opened}, expected {IDS}: has QEMU's struct PCIDevice changed?")
        connection.sendall(b"cont\n")
        until(b"(qemu)")


def follow(process, console, seconds):
    """Passes LAB lines on until the machine ends, or says nothing for too long; returns the last one."""
    deadline = time.monotonic() + seconds
    silent = time.monotonic() + SILENCE
    last, rest = "", b""
    with open(console, "rb") as log:
        while True:
            ended = process.poll() is not None
            rest += log.read()
            *lines, rest = rest.split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").strip()
                if text.startswith("LAB "):
                    last = text
                    silent = time.monotonic() + SILENCE
                    print(text.removeprefix("LAB "), flush=True)
            if ended:
                return last
            if time.monotonic() > min(deadline, silent):
                process.kill()
                print(f"lab: not done after {seconds} s, or silent for {SILENCE} s", flush=True)
                return ""
            time.sleep(0.3)


def main():
    directory, share = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 900
    with tempfile.TemporaryDirectory(prefix="lab-") as sockets:
        monitor = pathlib.Path(sockets, "monitor")
        process = start(directory, share, monitor)
        try:
            release(process, monitor)
            last = follow(process, share / "console.log", seconds)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if not re.fullmatch(r"LAB [1-9]\d* passed, 0 failed", last):
        print(f"lab: the host did not say that all is well; its console is {share}/console.log")
        sys.exit(1)


if __name__ == "__main__":
    main()
