"""Calls the program as a person or Proxmox VE would, and takes its answers apart."""

import json
import subprocess

PROGRAM = "/tmp/bin/pve-atomicops"
PATIENCE = "150"


def run(*arguments, status=None):
    """Standard output and exit status; with `status`, any other one ends the lab."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in ((0, 1) if status is None else (status,)):
        raise SystemExit(f"LAB FAILED: {' '.join(map(str, arguments))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout, done.returncode


def check(vmid):
    """The widths that `check` predicts for each port, those of ports without any left out."""
    answer = json.loads(run("check", vmid, "--format", "json")[0])
    ports = {}
    for vm in answer["vms"]:
        for entry in vm["entries"]:
            if entry["guest_port"] and entry["guest_widths"]:
                ports[entry["guest_port"]] = entry["guest_widths"]
        for port in vm["args_ports"]:
            if port["guest_widths"]:
                ports[port["port"]] = port["guest_widths"]
    return ports


def verify(vmid):
    """The answer of `verify`, and its exit status."""
    text, status = run("verify", vmid, "--wait", PATIENCE, "--format", "json")
    return json.loads(text), status


def widths(answer, which):
    """The widths of each port in an answer of `verify`, as `read` or as `predicted`; ports without any left out."""
    return {port["port"]: port[which] for port in answer["ports"] if port[which]}
