"""New processes that have JAX imported, and nothing else: to import it is most of what a short one does.

Each is a fork of one that waits. No backend has started in it, and nothing of `shtypes` is loaded.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

_SERVER = """
import json, os, sys, traceback, warnings
import jax
warnings.filterwarnings("ignore", category=RuntimeWarning, message="os.fork")  # no thread has been started
for line in sys.stdin:
    code, arguments, printed, errors = json.loads(line)
    if (child := os.fork()) == 0:
        for stream, path in ((0, os.devnull), (1, printed), (2, errors)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
        sys.argv, status = ["-c", *arguments], 1
        try:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _SERVER]
    server = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    return server


def printed(code: str, *arguments: str) -> str:
    """What a new process prints that runs some code, in the folder of the repository; it must not fail."""
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("printed", "errors")]
        print(json.dumps([code, arguments, *map(str, paths)]), file=server.stdin, flush=True)
        status = server.stdout.readline().strip()
        out, errors = (path.read_text(encoding="utf-8") for path in paths)
    assert status == "0", f"{status}: {errors[-4000:]}"
    return out
