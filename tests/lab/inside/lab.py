"""Runs in the lab's host: makes each setting, starts its VM, and compares what is predicted, verified and read."""

import json
import pathlib
import time

import hardware
import program
import settings
import story
from guest import CONFIGS, Guest

VMID = 101


def write_config(functions, lines):
    names = {}
    for name, function in functions.items():
        names[name] = function.address
        names[f"{name}_slot"] = function.address.rsplit(".", 1)[0]
    text = "".join(f"{line}\n" for line in ["name: lab", "machine: q35", "memory: 32", "ostype: l26", *lines])
    (CONFIGS / f"{VMID}.conf").write_text(text.format(**names))


def in_words(ports):
    words = (f"{port.removeprefix('ich9-pcie-')} {'+'.join(map(str, widths))}" for port, widths in sorted(ports.items()))
    return ", ".join(words) or "none"


def requester_bits(functions, answer):
    """Where `verify` shows another requester enable bit of the host than the function has while the VM runs."""
    wrong = []
    for port in answer["ports"]:
        for shown in port["functions"] or []:
            for name, function in functions.items():
                if function.address == shown["host"]:
                    bit = functions["pf" if name.startswith("vf") else name].requests()
                    if bit != shown["host_requester_enabled"]:
                        wrong.append(f"requester enable of {name} is {bit}, verify says {shown['host_requester_enabled']}")
    return wrong


def try_out(functions, setting):
    """Makes the setting and starts its VM; returns what the port registers say, and what disagrees with them."""
    hardware.reset(functions)
    for name, bits in setting.bits.items():
        functions[name].set(**bits)
    write_config(functions, setting.config)
    predicted = program.check(VMID)
    guest = Guest(VMID)
    try:
        guest.start()
        answer, status = program.verify(VMID)
        registers = guest.read_ports()
        requesters = requester_bits(functions, answer)
    finally:
        guest.stop()
    wrong = []
    read = {port: widths for port, widths in registers.items() if widths}
    if {port["port"] for port in answer["ports"]} != set(registers):
        wrong.append(f"verify has the ports {[port['port'] for port in answer['ports']]}, the guest {sorted(registers)}")
    for what, ports in (("check predicts", predicted), ("verify predicts", program.widths(answer, "predicted")),
                        ("verify reads", program.widths(answer, "read"))):
        if ports != read:
            wrong.append(f"{what} {in_words(ports)}")
    if setting.expect is not None and read != setting.expect:
        wrong.append(f"the rules say {in_words(setting.expect)}")
    if not answer["agrees"] or status != any(entry["verdict"] == "lost" for entry in answer["entries"]):
        wrong.append(f"verify ends with {status}, agrees: {answer['agrees']}")
    if answer["predicted_from"] != "running" or answer["config_changed"]:
        wrong.append(f"verify sees another configuration: {answer['config_changed']}")
    return read, [*wrong, *requesters]


def main():
    arguments = json.loads(pathlib.Path("/mnt/arguments.json").read_text())
    functions = hardware.prepare()
    CONFIGS.mkdir(parents=True, exist_ok=True)
    # Every passed function counts, so that a prediction is made for each.
    story.POLICY.write_text('devices = "any"\nmin_gpus = 1\n')
    numbers = range(1, arguments["count"] + 1)
    plan = [*settings.chosen(), *(settings.at_random(arguments["seed"], number) for number in numbers)]
    passed, failed = 0, 0
    for setting in plan:
        began = time.monotonic()
        read, wrong = try_out(functions, setting)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"LAB {'WRONG' if wrong else 'ok   '} {setting.name:48} {in_words(read):32} {time.monotonic() - began:5.1f} s",
              flush=True)
        for line in wrong:
            print(f"LAB       {line}", flush=True)
        if wrong:
            print(f"LAB       {setting.config} {setting.bits}", flush=True)
    hardware.reset(functions)
    more_passed, more_failed = story.tell(functions)
    print(f"LAB {passed + more_passed} passed, {failed + more_failed} failed", flush=True)


main()
