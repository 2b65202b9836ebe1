"""Runs a driver many times, and imports what it needs once: each run is a fork of this process.

The one argument is the driver. Each line of standard input is one run: a list in JSON, of the file for its output and of its arguments. The answer is a
line with its exit code, which is negative for a signal.
"""

import importlib
import json
import os
import runpy
import sys

driver = sys.argv[1]
importlib.import_module(os.path.splitext(os.path.basename(driver))[0])
answers = os.fdopen(os.dup(1), "w", buffering=1)
for line in sys.stdin:
    output, *arguments = json.loads(line)
    run = os.fork()
    if run == 0:
        break
    answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(run, 0)[1])}\n")
else:
    sys.exit()

# This is the fork. What the driver starts and leaves behind must not hold the pipes of the process above.
answers.close()
said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
    os.dup2(file, stream)
sys.argv = [driver, *arguments]
runpy.run_path(driver, run_name="__main__")
