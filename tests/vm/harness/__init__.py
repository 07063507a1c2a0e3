# SPDX-License-Identifier: MIT
"""Runs commands and tests as root in a virtual machine with a real kernel.

`machine` describes the machine (pure), `initrd` mounts its root file system,
`run` starts it and waits, `console` reads its log, `suite` runs the tests of
`guest/` in one boot. Inside the machine, `boot/init` runs.
"""
