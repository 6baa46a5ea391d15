"""The settings: what the host's registers say, how the VM is configured, and what its ports should then advertise.

Each setting starts from hardware.reset, where everything can do 32 and 64 bit. `bits` changes single functions, `config`
has the VM's lines with {name} for a function's address and {name_slot} for the address without the function. `expect`
names the ports that advertise something; it is what the rules of Linux and QEMU say, worked out by hand. Random settings
have no `expect`: there the program, `verify` and the registers only have to agree.
"""

import random
from dataclasses import dataclass, field

from hardware import ENDPOINTS, PORTS, SWITCH

BOTH = [32, 64]
P1, P2, P3 = "ich9-pcie-port-1", "ich9-pcie-port-2", "ich9-pcie-port-3"


@dataclass
class Setting:
    name: str
    config: list
    expect: dict = None
    bits: dict = field(default_factory=dict)


def one(name):
    return [f"hostpci0: {{{name}}},pcie=1"]


def chosen():
    none = {}
    card3 = ["hostpci0: {gpu3},pcie=1"]
    yield Setting("all functions", ["hostpci0: {gpu1_slot},pcie=1"], none)
    yield Setting("explicit function", one("gpu1"), {P1: BOTH})
    yield Setting("split over two entries", ["hostpci0: {gpu1},pcie=1", "hostpci1: {audio1},pcie=1"], {P1: BOTH, P2: BOTH})
    yield Setting("split, second function no completer", ["hostpci0: {gpu1},pcie=1", "hostpci1: {audio1},pcie=1"],
                  {P1: BOTH}, {"audio1": {}})
    yield Setting("two cards, all functions", ["hostpci0: {gpu1_slot},pcie=1", "hostpci1: {gpu2_slot},pcie=1"], none)
    yield Setting("two cards, one explicit", ["hostpci0: {gpu1},pcie=1", "hostpci1: {gpu2_slot},pcie=1"], {P1: BOTH})
    yield Setting("two cards in one slot", ["hostpci0: {gpu1};{gpu2},pcie=1"], none)
    yield Setting("address without function, one function there", ["hostpci0: {single_slot},pcie=1"], {P1: BOTH})
    yield Setting("behind a switch", card3, {P1: BOTH})
    yield Setting("upstream port does not route", card3, none, {"up": {}})
    yield Setting("downstream port does not route", card3, none, {"down0": {}})
    yield Setting("the other downstream port does not route", card3, {P1: BOTH}, {"down1": {}})
    yield Setting("upstream port blocks egress", card3, none, {"up": {"routes": True, "blocks": True}})
    yield Setting("downstream and root port block egress", card3, {P1: BOTH},
                  {"down0": {"routes": True, "blocks": True}, "port3": {"completes": (32, 64), "blocks": True}})
    yield Setting("root port without completers", one("gpu1"), none, {"port1": {"routes": True}})
    yield Setting("root port completes 32 bit only", one("gpu1"), {P1: [32]}, {"port1": {"completes": (32,)}})
    yield Setting("endpoint without completers", one("gpu1"), none, {"gpu1": {"routes": True}})
    yield Setting("everything completes 128 bit", one("gpu1"), {P1: [32, 64, 128]},
                  {"gpu1": {"completes": (32, 64, 128)}, "port1": {"completes": (32, 64, 128)}})
    yield Setting("virtual function", one("vf0"), {P1: BOTH})
    yield Setting("virtual function, physical one no completer", one("vf0"), none, {"pf": {}})
    yield Setting("conventional device", one("conventional"), none)
    yield Setting("conventional place in the guest", ["hostpci0: {gpu1}"], none)
    yield Setting("on the third port", ["hostpci2: {plain},pcie=1"], {P3: BOTH})
    yield Setting("switch in the guest", [
        "args: -device pcie-root-port,id=own,bus=pcie.0,addr=5.0,chassis=50,port=50 -device x3130-upstream,id=gup,bus=own"
        " -device xio3130-downstream,id=gdown,bus=gup,chassis=51,slot=51 -device vfio-pci,host={gpu1},bus=gdown,addr=0x0,rombar=0"
    ], none)
    yield Setting("root port of its own in the guest", [
        "args: -device pcie-root-port,id=own,bus=pcie.0,addr=5.0,chassis=50,port=50"
        " -device vfio-pci,host={gpu2},bus=own,addr=0x0,rombar=0"
    ], {"own": BOTH})


def at_random(seed, number):
    rng = random.Random(f"{seed}/{number}")

    def widths(likely):
        return tuple(width for width in (32, 64, 128) if rng.random() < likely)

    # A third of the hosts is bad everywhere, the others have a flaw here and there.
    likely = rng.choice([0.6, 0.9, 0.9])
    bits = {}
    for name in [*PORTS, *ENDPOINTS, "pf"]:
        if name != "conventional":
            bits[name] = {"completes": widths(likely), "routes": rng.random() < 0.3, "blocks": rng.random() < 0.2}
    for name in SWITCH:
        bits[name] = {"routes": rng.random() < likely + 0.05, "completes": widths(0.2), "blocks": rng.random() < 0.15}

    cards = [["gpu1", "audio1"], ["gpu2", "audio2"], ["gpu3", "audio3"], ["single"], ["plain"], ["vf0"], ["vf1"], ["conventional"]]
    rng.shuffle(cards)
    config, index = [], 0
    for card in cards[:rng.choice([1, 2, 2, 3])]:
        pcie = ",pcie=1" if rng.random() < 0.9 else ""
        form = rng.choice(["all", "first", "last", "split"]) if len(card) == 2 else "first"
        if form == "all":
            lines = [f"{{{card[0]}_slot}}"]
        elif form == "split":
            lines = [f"{{{name}}}" for name in card]
        else:
            lines = [f"{{{card[0 if form == 'first' else -1]}}}"]
        for line in lines:
            if index < 4:
                config.append(f"hostpci{index}: {line}{pcie}")
                index += 1
    if rng.random() < 0.25:
        spare = cards[-1][0]
        middle = rng.choice(["", " -device x3130-upstream,id=gup,bus=own -device xio3130-downstream,id=gdown,bus=gup,chassis=51,slot=51"])
        flag = rng.choice(["", ",multifunction=on"])
        config.append("args: -device pcie-root-port,id=own,bus=pcie.0,addr=5.0,chassis=50,port=50" + middle
                      + f" -device vfio-pci,host={{{spare}}},bus={'gdown' if middle else 'own'},addr=0x0,rombar=0{flag}")
    return Setting(f"random {seed}/{number}", config, None, bits)
