# SPDX-License-Identifier: MIT
#
# For people and for CI; the module itself is built by Kbuild. `make help` lists
# the targets, docs/testing.md explains the variables.

KERNEL ?= 6.1
PYTHON := build/venv/bin/python
PYTEST = $(PYTHON) -m pytest -q --junitxml=build/junit/$@.xml $(PYTEST_ARGS)
VM     = PYTHONPATH=tests PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m vm
MODULE_OPTIONS = $(if $(W),W=$(W))

# Given on the command line or in the environment, they describe the machine.
export KERNEL GPUS PROFILE MEM_MIB ICOUNT BARE CPUS VM_MEM TIMEOUT DAEMON DOCKER \
       DOCKER_CONFIG NVSIM MODULE_ARGS APPEND CMD DEBUG_KERNEL PYTEST_ARGS
unexport MAKEFLAGS

.DEFAULT_GOAL := help
.PHONY: help setup modules modules-all tools vm vm-shell test lint test-unit test-core \
        test-daemon test-cli test-nvsim test-demo test-vm demo bench-slice bench-core clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## packages, kernels and the Python environment (Debian 12, root or sudo)
	@scripts/setup

modules: setup ## build the modules for KERNEL=6.1|6.12|debug [W=1] into build/modules/
	@scripts/build-modules $(KERNEL) $(MODULE_OPTIONS)

modules-all: setup ## the same for every kernel that is there
	@for k in $(notdir $(patsubst %/release,%,$(wildcard build/kernels/*/release))); do \
		scripts/build-modules $$k $(MODULE_OPTIONS) || exit; done

tools: setup ## build the user programs that the guest needs (cgpu-runtime, nvsim's clients)
	@scripts/build-tools

vm: modules tools ## run CMD='…' as root in a virtual machine
	@$(VM) run

vm-shell: modules tools ## the same with a shell on this terminal
	@$(VM) shell

test: ## every level, cheap to dear, and a table at the end
	@scripts/test-levels

lint: setup ## ruff and shellcheck
	@scripts/lint

test-unit: setup ## the harness's own tests
	@$(PYTEST) tests/vm

test-core: setup ## the pure C core, compiled for user space
	@$(PYTEST) tests/core

test-daemon: setup ## cgpud without a kernel
	@$(PYTEST) tests/daemon

test-cli: setup ## the command line tools
	@$(PYTEST) tests/cli

test-nvsim: setup ## layouts and clients of the simulated driver, on the host
	@$(PYTEST) tests/nvsim

test-demo: setup ## the arithmetic of the demo
	@$(PYTEST) tests/demo

test-vm: modules tools ## one boot of KERNEL, KIND=plain|bare|icount|docker, TEST=name to choose
	@$(VM) suite $(or $(KIND),plain) $(TEST)

demo: ## the product at work on a simulated GPU
	@tests/demo/demo

bench-slice: modules tools ## accuracy and cost of the time slices, in exact guest time
	@$(PYTHON) tests/bench/slice.py

bench-core: setup ## what one decision of the turn engine costs
	@$(PYTHON) tests/bench/core.py

clean: ## remove what was built, keep kernels and the Python environment
	rm -rf build/modules build/vm build/junit build/bin build/client
