# SPDX-License-Identifier: MIT
"""Runs commands and tests as root in a virtual machine with a real kernel.

`machine` says what the machine is (pure), `initrd` gets it to its root file
system, `run` starts it and waits, `console` reads its log, `suite` runs the
tests of `guest/` in one boot. What happens inside is `boot/init`.
"""
