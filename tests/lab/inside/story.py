"""The whole story of one VM: a card with all its functions loses AtomicOps, the hook says so, a repair brings them back."""

import os
import pathlib
import socket

import program
from guest import CONFIGS, Guest
from settings import BOTH, P1, P2

VMID = 102
POLICY = pathlib.Path("/etc/pve/atomicops.toml")


class Story:
    """Counts what holds and what does not."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def holds(self, what, condition, shown):
        self.passed, self.failed = self.passed + bool(condition), self.failed + (not condition)
        print(f"LAB {'ok   ' if condition else 'WRONG'} story: {what}" + ("" if condition else f": {shown!r}"), flush=True)


def syslog():
    """Listens where programs send their messages."""
    os.makedirs("/dev", exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind("/dev/log")
    listener.settimeout(170)
    return listener


def message(listener):
    try:
        return listener.recv(4096).decode(errors="replace")
    except TimeoutError:
        return ""


def tell(functions):
    story = Story()
    config = CONFIGS / f"{VMID}.conf"
    slot = functions["gpu1"].address.rsplit(".", 1)[0]
    config.write_text(f"name: story\nmachine: q35\nmemory: 32\nostype: l26\nhostpci0: {slot},pcie=1\n")
    before = config.read_bytes()
    POLICY.write_text("min_gpus = 1\nverify = true\nsyslog = false\n")
    log = syslog()

    text, _ = program.run("hook", VMID, "pre-start", status=0)
    story.holds("all functions: the hook warns before the start", text.startswith(f"WARN: VM {VMID}"), text)
    guest = Guest(VMID)
    guest.start()
    answer, status = program.verify(VMID)
    story.holds("all functions: verify reads none, and tells the loss",
                status == 1 and answer["agrees"] and program.widths(answer, "read") == {}
                and [entry["verdict"] for entry in answer["entries"]] == ["lost"], answer)
    program.run("hook", VMID, "post-start", status=0)
    text = message(log)
    story.holds("post-start: a check in the background reports to syslog",
                f"VM {VMID} verify: as predicted: {P1} 32bit- 64bit-" in text, text)
    text = message(log)
    story.holds("post-start: and names the loss", f"VM {VMID} verify: lost: hostpci0" in text, text)
    guest.stop()

    program.run("fix", VMID, "--strategy", "split", "--yes", status=0)
    lines = sorted(line for line in config.read_text().splitlines() if line.startswith("hostpci"))
    story.holds("fix: one entry for each function", lines == [
        f"hostpci0: {functions['gpu1'].address},pcie=1", f"hostpci1: {functions['audio1'].address},pcie=1"], lines)
    text, _ = program.run("hook", VMID, "pre-start", status=0)
    story.holds("split: the hook says nothing", text == "", text)
    guest = Guest(VMID)
    guest.start()
    answer, status = program.verify(VMID)
    story.holds("split: verify reads 32 and 64 bit on the card's port", status == 0 and answer["agrees"]
                and answer["predicted_from"] == "running" and answer["config_changed"] == []
                and program.widths(answer, "read") == {P1: BOTH, P2: BOTH}, answer)
    behind = {function["id"]: function["host"] for port in answer["ports"] for function in port["functions"]}
    inside = guest.functions()
    story.holds("split: the second function is still in the guest",
                behind == {"hostpci0": functions["gpu1"].address, "hostpci1": functions["audio1"].address}
                and inside.get("hostpci0") == (0x1234, 0x1111) and inside.get("hostpci1") == (0x1af4, 0x1059),
                (behind, inside))
    split = config.read_bytes()
    config.write_bytes(before)
    answer, status = program.verify(VMID)
    story.holds("a configuration changed meanwhile is told, and the running guest predicted all the same",
                status == 0 and answer["agrees"] and program.widths(answer, "read") == {P1: BOTH, P2: BOTH}
                and [text.split(":")[0] for text in answer["config_changed"]] == ["hostpci0", "hostpci1"], answer)
    config.write_bytes(split)
    guest.stop()

    program.run("undo", VMID, status=0)
    lines = [line for line in config.read_text().splitlines() if line.startswith("hostpci")]
    story.holds("undo: the old entry is back", lines == [f"hostpci0: {slot},pcie=1"], lines)
    guest = Guest(VMID)
    guest.start()
    answer, status = program.verify(VMID)
    story.holds("undone: verify reads none again", status == 1 and answer["agrees"]
                and program.widths(answer, "read") == {}, answer)
    guest.stop()
    log.close()
    return story.passed, story.failed
