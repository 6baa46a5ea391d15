"""Runs in the lab's host: makes each setting, starts its VM, and compares what is predicted, verified and read."""

import json
import pathlib
import subprocess
import sys
import time

import hardware
import settings
from guest import CONFIGS, Guest

VMID = 101
PROGRAM = "/mnt/pve-atomicops"


def write_config(functions, lines):
    names = {}
    for name, function in functions.items():
        names[name] = function.address
        names[f"{name}_slot"] = function.address.rsplit(".", 1)[0]
    text = "".join(f"{line}\n" for line in ["name: lab", "machine: q35", "memory: 32", "ostype: l26", *lines])
    (CONFIGS / f"{VMID}.conf").write_text(text.format(**names))


def main():
    arguments = json.loads(pathlib.Path("/mnt/arguments.json").read_text())
    functions = hardware.prepare()
    CONFIGS.mkdir(parents=True, exist_ok=True)
    pathlib.Path("/var/run/qemu-server").mkdir(parents=True, exist_ok=True)
    plan = [*settings.chosen(), *(settings.at_random(arguments["seed"], k) for k in range(1, arguments["count"] + 1))]
    failures = 0
    for setting in plan:
        began = time.monotonic()
        hardware.reset(functions)
        for name, bits in setting.bits.items():
            functions[name].set(**bits)
        write_config(functions, setting.config)
        guest = Guest(VMID)
        guest.start()
        t1 = time.monotonic()
        ports = guest.read_ports()
        guest.stop()
        got = {port: widths for port, widths in ports.items() if widths}
        ok = setting.expect is None or got == setting.expect
        failures += not ok
        print(f"LAB {'ok' if ok else 'WRONG'} {setting.name}: {got} {t1-began:.1f} {time.monotonic() - began:.1f} s", flush=True)
    print(f"LAB {'FAILED' if failures else 'PASSED'}", len(plan), failures, flush=True)


main()
