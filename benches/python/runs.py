"""What scripts of one process share: settings, runs, and the line of JSON."""

import argparse
import json
import os
import resource
import shutil
import statistics
import time


class Setting:
    """A list like `mmap,ops=1`, or `plain`."""

    def __init__(self, text, known):
        self.text = text
        self.parts = dict((part.split("=") + [None])[:2] for part in text.split(",") if part != "plain")
        assert not set(self.parts) - set(known), self.parts

    def __contains__(self, name):
        return name in self.parts

    def number(self, name, otherwise):
        return int(self.parts.get(name, otherwise))


def parser(modes):
    """The first argument of all scripts; a script adds its own behind it."""
    out = argparse.ArgumentParser()
    out.add_argument("mode", choices=modes)
    return out


def arguments(parser):
    """Settings come last."""
    parser.add_argument("iterations", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--choose", action="store_true")
    return parser.parse_intermixed_args()


def emptied(path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(setting, runs, work, before):
    """Seconds and CPU seconds of each run, and what the last one gave; the first warms up, and is no part of it."""
    seconds, cpu, last = [], [], None
    for _ in range(runs + 1):
        last = None
        before()
        start, used = time.perf_counter(), time.process_time()
        last = work(setting)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return seconds[1:], cpu[1:], last


def measure(args, known, work, nbytes, check, before=lambda: None, results=0):
    """Prints one measurement, or with --choose which setting is the fastest. `results` are bytes that belong to the state."""
    settings = [Setting(text, known) for text in args.settings or ["plain"]]
    if args.choose:
        tried = {s.text: statistics.median(timed(s, args.iterations, work, before)[0]) for s in settings}
        print(json.dumps({"best": min(tried, key=tried.get), "tried": tried}), flush=True)
        return
    was = peak()
    seconds, cpu, last = timed(settings[0], args.iterations, work, before)
    grown = max(0, peak() - was - results)
    check(last)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": nbytes, "grown": grown}), flush=True)
