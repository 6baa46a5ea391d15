"""Traces the hook on an example host and writes which functions it ran. To be run by gdb; see link-order."""

import collections
import os
import re
import shutil
import socket
import subprocess
import tempfile

import gdb

EXAMPLE = "examples/hosts/x399-two-7900xt"
ORDER = "packaging/generated/hook.ld"
# One VM with a finding and one without; then the phases that have nothing to do.
CALLS = ("101 pre-start", "102 pre-start", "101 post-start", "101 post-stop")

# Bytes of a name's functions that may come along unused.
SPARE = 2048

ran = []


class Once(gdb.Breakpoint):
    """Stays at the first instruction of a function until the function runs."""

    def __init__(self, address, name):
        super().__init__(f"*{address:#x}", internal=True)
        self.function = name

    def stop(self):
        if self.function not in ran:
            ran.append(self.function)
        self.enabled = False
        return False


def functions(program):
    """Addresses in the file, sizes and names of all functions."""
    listing = subprocess.run(["nm", "-S", "--defined-only", program], check=True, capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        # Without a size where the symbol has none.
        address, *size, kind, name = line.split()
        if kind in "tT":
            yield int(address, 16), int(*size, 16) if size else 0, name


def trace(program, words):
    gdb.execute(f"file {program}", to_string=True)
    gdb.execute(f"set args {words} > /dev/null")
    gdb.execute("starti", to_string=True)
    mappings = gdb.execute("info proc mappings", to_string=True).splitlines()
    base = next(int(line.split()[0], 16) for line in mappings if line.endswith(program))
    breakpoints = [Once(base + address, name) for address, _, name in functions(program)]
    gdb.execute("continue", to_string=True)
    for breakpoint in breakpoints:
        breakpoint.delete()


def pattern(name):
    """A function's section, without the parts of its name that differ from compiler to compiler."""
    name = re.sub(r"17h[0-9a-f]{16}E.*", "17h*", name)
    return ".text." + re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", name)


def main():
    for setting in ("pagination off", "confirm off", "breakpoint always-inserted on", "debuginfod enabled off"):
        gdb.execute(f"set {setting}")
    program = os.path.realpath(os.environ["PROGRAM"])
    with tempfile.TemporaryDirectory() as directory:
        tree = os.path.join(directory, "host")
        shutil.copytree(EXAMPLE, tree, symlinks=True)
        os.mkdir(os.path.join(tree, "dev"))
        log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        log.bind(os.path.join(tree, "dev/log"))
        for call in CALLS:
            trace(program, f"--root {tree} hook {call}")
    patterns = dict.fromkeys(pattern(name) for name in ran if name.startswith(("_ZN", "_R")))
    # Functions of generic types share names: of such, nearly all bytes could be the wrong ones.
    alike, used = collections.Counter(), collections.Counter()
    for _, size, name in functions(program):
        alike[pattern(name)] += size
        if name in ran:
            used[pattern(name)] += size
    patterns = [section for section in patterns if alike[section] <= 2 * used[section] + SPARE]
    with open(ORDER, "w", encoding="ascii") as order:
        order.write("/* Written by benches/link-order: the functions that the hook runs, in the order of their first call. */\n")
        order.write("SECTIONS\n{\n  .text.hook :\n  {\n")
        for section in patterns:
            order.write(f"    *({section})\n")
        order.write("  }\n}\nINSERT BEFORE .text;\n")
    print(f"{len(patterns)} functions in {ORDER}")


main()
