# SPDX-License-Identifier: MIT
"""A simulated GPU under the module's own scheduler: the files of cgpu_km/core, compiled for this machine.

native   the C files as a shared library        gpu      the engine, its driver's controls and their cost
model    the parameters of a simulation         turns    the module's scheduler thread
config   flags and TOML to a model              figures  shares, waits, errors
run      model to figures                       draw     a time line as text and SVG
cluster  pods of a cluster on its nodes' GPUs, without time; cluster_config its file
run_state  which containers have work, as the module reads it
"""
