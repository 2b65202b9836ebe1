"""Files that torch writes, and every global that other scanners call dangerous, judged by these scanners and by reshard.

    python pickles.py make OUT                          # with torch
    python pickles.py compare OUT --reshard PROGRAM     # with picklescan, modelscan and fickling
"""

import argparse
import collections
import json
import os
import pickle
import subprocess
import sys
import warnings

# Where reshard's verdict differs on purpose; docs/pickles.md says why.
DIFFER = {
    "functools.partial",
    "builtins.getattr",
    "torch.distributed.elastic.rendezvous.api.basichandlers",
    "torch.storage._load_from_bytes",
}
# Modules of which fickling calls everything unsafe, and in which reshard lists the dangerous names.
LISTED = {"_operator", "builtins", "difflib", "functools", "logging", "operator", "types", "torch.jit", "torch.compile"}
# No modules, but functions under old names.
NOT_MODULES = {"compile", "eval", "exec"}


def make(out):
    import torch

    def calls(module, name, *args):
        """An object whose pickle calls this function."""
        __import__(module)
        function = getattr(sys.modules[module], name)
        return type("Evil", (), {"__reduce__": lambda self: (function, args)})()

    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(net.parameters())
    benign = {
        "state": net.state_dict(),
        "optimizer": {"optimizer": optimizer.state_dict(), "epoch": 1, "order": collections.OrderedDict(a=1)},
        "module": net,
    }
    evil = {
        "system": calls("os", "system", "true"),
        "eval": calls("builtins", "eval", "1"),
        "popen": calls("subprocess", "Popen", ["true"]),
        "run": calls("runpy", "run_path", "x.py"),
        "socket": calls("socket", "create_connection", ("127.0.0.1", 1)),
        "nested": calls("torch.storage", "_load_from_bytes", pickle.dumps(calls("os", "system", "true"), 2)),
    }
    for name, value in benign.items():
        torch.save(value, os.path.join(out, f"benign_{name}.pt"))
        torch.save(value, os.path.join(out, f"benign_{name}_old.pt"), _use_new_zipfile_serialization=False)
    for name, value in evil.items():
        value = {"weights": torch.ones(2), "more": value}
        torch.save(value, os.path.join(out, f"evil_{name}.pt"))
        torch.save(value, os.path.join(out, f"evil_{name}_old.pt"), _use_new_zipfile_serialization=False)
        torch.save(value, os.path.join(out, f"evil_{name}_4.pt"), pickle_protocol=4)


def lists():
    """The globals that the programs call dangerous: (module, name), with `*` for a whole module."""
    from fickling.analysis import UnsafeImportsML
    from fickling.fickle import UNSAFE_IMPORTS
    from modelscan.settings import DEFAULT_SETTINGS
    from picklescan.scanner import _unsafe_globals

    named = [_unsafe_globals, *DEFAULT_SETTINGS["unsafe_globals"].values(), UnsafeImportsML.UNSAFE_IMPORTS]
    whole = UNSAFE_IMPORTS | set(UnsafeImportsML.UNSAFE_MODULES)
    found = {(module, "*") for module in whole - NOT_MODULES}
    for table in named:
        for module, names in table.items():
            found |= {(module, name) for name in ([names] if isinstance(names, str) else names)}
    return sorted(found)


def globals_of(reshard, path):
    """{file: [(global, verdict)]}"""
    command = [reshard, "inspect", "--pickles", "--json", path]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = collections.defaultdict(list)
    for row in json.loads(printed.stdout)["globals"]:
        found[row["file"]].append((row["global"], row["verdict"]))
    return found


def compare_lists(out, reshard):
    names, folder = {}, os.path.join(out, "lists")
    os.makedirs(folder)
    for n, (module, name) in enumerate(lists()):
        names[f"{n}.pkl"] = (module, name)
        with open(os.path.join(folder, f"{n}.pkl"), "wb") as f:
            f.write(f"c{module}\n{name.replace('*', 'anything')}\n.".encode())
    found = globals_of(reshard, folder)
    for file, (module, name) in names.items():
        modern = module.replace("__builtin__", "builtins").replace("__builtins__", "builtins")
        if f"{modern}.{name}" in DIFFER or (name == "*" and modern in LISTED):
            continue
        verdicts = {verdict for _, verdict in found[file]}
        if "runs code" not in verdicts:
            yield f"{module}.{name}: {found[file]}"


def compare_files(out, reshard):
    import fickling
    from fickling.analysis import Severity
    from modelscan.modelscan import ModelScan
    from picklescan.scanner import scan_file_path

    found = globals_of(reshard, out)
    for file in sorted(os.listdir(out)):
        path = os.path.join(out, file)
        if os.path.isdir(path):
            continue
        scan = ModelScan()
        scan.scan(path)
        said = {
            "reshard": any(verdict == "runs code" for _, verdict in found[file]),
            "picklescan": scan_file_path(path).issues_count > 0,
            "modelscan": bool(scan.issues.all_issues),
        }
        # Fickling also calls classes of torch unsafe, and reads only the first pickle of an old file.
        if file.startswith("evil") and not file.endswith("_old.pt"):
            results = fickling.scan_zip_archive(path).values()
            said["fickling"] = any(result.severity > Severity.LIKELY_SAFE for result in results)
        is_evil = file.startswith("evil")
        agree = said.pop("reshard") == is_evil and any(said.values()) == is_evil
        # The others overlook some, of which this one is overlooked by all.
        if not agree and file != "evil_nested_old.pt":
            yield f"{file}: {said} {found[file]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("out")
    parser.add_argument("--reshard")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.makedirs(args.out, exist_ok=True)
    if args.what == "make":
        return make(args.out)
    failed = [*compare_files(args.out, args.reshard), *compare_lists(args.out, args.reshard)]
    if failed:
        sys.exit("\n".join(["other verdicts:", *failed]))


if __name__ == "__main__":
    main()
