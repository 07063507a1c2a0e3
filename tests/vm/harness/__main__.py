# SPDX-License-Identifier: MIT
"""`python -m vm.harness run|shell|suite`: called by `make vm`, `vm-shell` and `test-vm`.

The machine is described by environment variables, listed in docs/develop/testing.md.
"""

from __future__ import annotations

import os
import signal
import sys

from . import run, suite
from .machine import BadVariable, from_variables


def main(argv: list[str]) -> int:
    """Dispatch; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the ladders, so that the machine ends too
    try:
        match argv:
            case ["run", *words] if words:
                return run_command(" ".join(words))
            case ["run"] if os.environ.get("CMD"):
                return run_command(os.environ["CMD"])
            case ["shell"]:
                return run_shell()
            case ["suite", *arguments]:
                return suite.main(arguments)
        say("usage: run COMMAND | shell | suite [KIND] [pytest arguments]")
        return 2
    except BadVariable as error:
        say(str(error))
        return 2
    except run.SetupFailed as error:
        say(f"setup failed, the command did not run: {error}")
        return run.EXIT_SETUP
    except run.LostVM as error:
        say(f"VM LOST (this is no test result): {error}")
        return run.EXIT_LOST
    except KeyboardInterrupt:
        return 130


def run_command(command: str) -> int:
    """The command's status, or EXIT_FINDINGS where it is 0 and the kernel complained."""
    timeout = float(os.environ.get("TIMEOUT") or 300)
    result = run.run(from_variables(os.environ), command, timeout, suite.to_stdout, suite.to_stderr)
    if result.findings:
        say(f"the kernel complained, whole log in {result.run_dir}/console.log")
        for finding in result.findings:
            say(str(finding))
    say(f"status {result.status} after {result.seconds:.1f} s")
    return result.status or (run.EXIT_FINDINGS if result.findings else 0)


def run_shell() -> int:
    """A shell on this terminal; Ctrl-D ends the machine."""
    timeout = float(os.environ.get("TIMEOUT") or 86400)
    machine = from_variables(os.environ, shell=True)
    return run.run(machine, "", timeout, suite.to_stdout, suite.to_stderr).status


def say(text: str) -> None:
    """One message to the person, never on stdout."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
