#!/usr/bin/env python3
"""What tests/pool_tightness.rs and the bench of the peers pin of the shared folder's sim.py.

    scripts/pool_pins.py ../shared/data/pool_sim/sim.py

Runs its four workloads against a recorder and three of its rules, and prints a line for each
number: events, blocks, the most that was out at once, a fingerprint of the events, and what
each rule had reserved at the end.
"""
import random
import sys

with open(sys.argv[1]) as file:
    rules, printing = file.read().split("\npol=")
sim = {}
exec(rules, sim)


class Recorder:
    """Folds each event into FNV-1a, a 64-bit word at a time."""

    def __init__(self):
        self.events = self.blocks = 0
        self.hash = 0xCBF29CE484222325

    def fold(self, word):
        self.events += 1
        self.hash = ((self.hash ^ word) * 0x100000001B3) % (1 << 64)

    def alloc(self, n):
        self.fold(n)
        self.blocks += 1
        return self.blocks - 1

    def dealloc(self, block):
        self.fold(1 << 63 | block)


for name in ("w1", "w2", "w3", "w4"):
    now = peak = 0

    def live(change):
        global now, peak
        now += change
        peak = max(peak, now)

    recorder = Recorder()
    sim[name](recorder, random.Random(7), live)
    print(f"{name}: {recorder.events} events, {recorder.blocks} blocks, peak {peak}, {recorder.hash:#018x}")
    for kind in ("torch", "bfc", "exp"):
        sim["Region"].small = {}
        rule = sim["Region"](kind)
        sim[name](rule, random.Random(7), lambda _: None)
        print(f"  {kind}: {rule.res} reserved, {rule.res / peak:.2f}x")
