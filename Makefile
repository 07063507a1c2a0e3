# SPDX-License-Identifier: MIT
#
# For people and for CI; the module itself is built by Kbuild. `make help` lists
# the targets, docs/develop/testing.md explains the variables.

# A machine's kernel and kind: what TEST needs, by its markers; User-Mode Linux, unless BACKEND=qemu.
ifneq ($(filter vm vm-shell test-vm soak tutorial,$(MAKECMDGOALS)),)
BOOT   := $(shell python3 tests/vm/harness/chosen.py '$(KIND)' '$(BACKEND)' $(TEST))
KIND   := $(or $(KIND),$(word 2,$(BOOT)))
ifneq ($(KERNEL_DRIVER)$(filter-out 1,$(CPUS)),)
BOOT   := 6.1
endif
endif
KERNEL ?= $(or $(firstword $(BOOT)),6.1)
PYTHON := build/venv/bin/python
# A test that hangs shows its threads and ends.
PYTEST = $(PYTHON) -m pytest -q --junitxml=build/junit/$@.xml \
	-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true $(PYTEST_ARGS)
VM     = PYTHONPATH=tests PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m vm.harness
RECORD = PYTHONPATH=tests PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/soak/record.py
MODULE_OPTIONS = $(if $(W),W=$(W))
# These bring NVIDIA's own user space along.
ifneq ($(filter cuda%,$(KIND)),)
NVIDIA ?= 550
endif
USER_SPACE = $(if $(NVIDIA),nvidia)
# Container engines newer than this machine's.
NEWER_ENGINES = $(if $(ENGINES),engines)
# A Kubernetes cluster in the machine.
CLUSTER = $(if $(filter kube,$(KIND)),kube)
# A machine with systemd installs them; then the node installer, with the modules of its kernel.
PACKAGES = $(if $(filter-out 0 no off false,$(SYSTEMD))$(filter systemd,$(KIND)),deb node-image sysext)
KERNELS ?= $(if $(PACKAGES),$(KERNEL))

# NVIDIA's own kernel driver, and its user space over it.
ifneq ($(filter driver%,$(KIND)),)
NVIDIA ?= $(or $(KERNEL_DRIVER),550)
NVIDIA_MODULES = driver nvidia
endif

# Given on the command line or in the environment, they describe the machine.
export KERNEL PART GPUS PROFILE MEM_MIB DRIVER ICOUNT BARE CPUS CPU_FEATURES VM_MEM TIMEOUT DAEMON DOCKER SYSTEMD TUTORIAL \
       DOCKER_CONFIG NVSIM MODULE_ARGS APPEND CMD DEBUG_KERNEL PYTEST_ARGS OGKM OGKM_TAGS \
       PREFIX DESTDIR UNITDIR ZSHDIR SYSTEM_PYTHON KEY CERT NVIDIA KERNEL_DRIVER CHIPS ENGINES
export CGPU_CACHE ?= $(CURDIR)/build/sim
unexport MAKEFLAGS

.DEFAULT_GOAL := help
.PHONY: help setup nvidia engines kube uml mutants modules modules-all tools vm vm-shell tutorial test test-all lint static test-unit test-core \
        test-replay test-daemon test-cli test-kube test-cluster test-nvsim test-rm fuzz-rm test-driver driver test-gpu test-demo test-model test-bench test-abi abi-diff abi-doc config-doc test-vm fuzz fuzz-text soak reliability record forward module-run module-run-rehearsal torch demo real bench \
        bench-ioctl bench-scale bench-sched bench-quick bench-engine clean \
        setup-install setup-build setup-deb setup-image setup-test wheel node-image sysext modules-image install uninstall deb rpm release build-range build-clang test-install

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## packages, kernels and the Python environment (Debian 12, root or sudo)
	@scripts/setup

modules: setup ## build the modules for KERNEL=uml|uml-debug|uml-smp|6.1|6.12|5.10|7.2|7.3|debug [W=1] into build/modules/
	@scripts/setup kernel $(KERNEL)
	@scripts/build-modules $(KERNEL) $(MODULE_OPTIONS)

modules-all: setup ## the same for every kernel that is there, or KERNELS='6.1 6.12'
	@for k in $(or $(KERNELS),$(notdir $(patsubst %/release,%,$(wildcard build/kernels/*/release)))); do \
		scripts/build-modules $$k $(MODULE_OPTIONS) || exit; done

uml: setup-build ## Linux as a user program, for KERNEL=uml: five minutes of processor time, once
	@scripts/build-uml uml

mutants: setup ## every core, daemon and runtime with one fault against the tests that have to notice it; build/mutants.json
	@scripts/mutants

tools: setup ## build the user programs that the guest needs (cgpu-runtime, nvsim's clients)
	@scripts/build-tools

nvidia: tools ## NVIDIA's own user space for NVIDIA=535|550|555, and what the tests run on it
	@scripts/setup-nvidia $(or $(NVIDIA),550) $(if $(filter cuda_nvcc,$(KIND)),nvcc libraries)
	@scripts/build-cuda $(or $(NVIDIA),550)

engines: setup ## container engines of ENGINES=trixie|sid for the tests, unpacked below build/engines: 110 MB to download
	@scripts/setup-engines $(or $(ENGINES),sid)

kube: setup-build ## Kubernetes 1.20 for KIND=kube, built from Debian's sources: 132 MB to download, minutes to build
	@scripts/setup-kube

vm: modules tools $(PACKAGES) $(USER_SPACE) $(NEWER_ENGINES) ## run CMD='…' as root in a machine, or the tests of the guest that TEST names
	@$(VM) $(if $(TEST),suite $(KIND) $(TEST),run)

vm-shell: modules tools $(PACKAGES) $(USER_SPACE) $(NEWER_ENGINES) ## the same with a shell on this terminal; TUTORIAL=1: for the commands of docs/user/tutorial.md
	@$(VM) shell

tutorial: modules tools $(CLUSTER) ## every command of docs/user/tutorial.md and howto.md, without a GPU; KIND=kube: tutorial-kubernetes.md; build/tutorial.json
	@KIND=$(KIND) $(PYTHON) -B tests/tutorial/tutorials.py

test: ## every level, five or six at a time, and a table at the end
	@scripts/test-levels

test-all: ## and the levels that make test has no time for
	@scripts/test-levels --all

lint: setup ## ruff, shellcheck and mypy --strict
	@scripts/lint

static: setup ## sparse and checkpatch over the module's sources; needs the debug kernel's checkpatch
	@scripts/static

test-unit: setup ## the harness's own tests
	@$(PYTEST) tests/unit/harness

test-core: setup ## the pure C core, compiled for user space
	@$(PYTEST) tests/unit/core

test-replay: setup ## recorded calls through the call table, the recorder, and the inputs kept by make fuzz-text
	@$(PYTEST) tests/abi/replay tests/fuzz/text

test-daemon: setup ## cgpud without a kernel
	@scripts/setup-prometheus
	@$(PYTEST) tests/unit/daemon

test-cli: setup ## the command line tools
	@$(PYTEST) tests/unit/cli

test-kube: setup ## cgpu-kube against a kubelet and an API server of the tests
	@scripts/setup-prometheus
	@$(PYTEST) tests/kube

test-cluster: setup kube ## pods on a real Kubernetes, with the kernel's part in memory; needs root, no virtual machine
	@tests/cluster/namespace $(PYTEST) tests/cluster

# The tests of rpm packages bear the marker `more`.
test-install: setup-test deb $(if $(findstring not more,$(PYTEST_ARGS)),,rpm) ## packages, DKMS, make install, the commands of docs/user/install.md; in a throw-away root
	@$(PYTEST) tests/install

test-nvsim: setup ## layouts and clients of the simulated driver, on the host
	@$(PYTEST) tests/nvsim

test-rm: setup ## NVIDIA's own resource manager, 535 and 550, on a simulated GPU in user space; build/rm.json
	@scripts/setup-nvidia driver-550 driver-535
	@nice scripts/build-rm 550 535
	@nice $(PYTEST) tests/rm

fuzz-rm: setup ## random passed calls to NVIDIA's resource manager and to the ledger, compared; SECONDS=600 SEED=n
	@scripts/setup-nvidia driver-550 driver-535
	@nice scripts/build-rm 550 535
	@nice $(PYTHON) tests/rm/fuzz.py --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

test-gpu: setup ## the measurements on a GPU, without one
	@$(PYTEST) tests/hardware

test-demo: setup ## the arithmetic of the demo, the tutorials' pages and pictures
	@$(PYTEST) tests/demo tests/tutorial

test-model: setup ## the models of core swap, hand-over and lending, in every interleaving
	@$(PYTEST) tests/model

test-bench: setup ## the rules and figures of bench-sched
	@$(PYTEST) tests/bench

test-abi: setup ## numbers and offsets against the public driver: OGKM=<tree or repository> [OGKM_TAGS='…']
	@$(PYTHON) tests/abi/check.py

abi-diff: setup ## what a release of the public driver changes, as rows of the call table: OGKM=<repository> [FROM=<release> TO=<release>]
	@$(PYTHON) tests/abi/differences.py

abi-doc: setup ## write build/abi.md, every row of the call table (docs/reference/abi.md)
	@$(PYTHON) scripts/abi-doc

config-doc: setup ## write systemd/cgpu.toml.example and the tables of docs/reference/configuration.md
	@$(PYTHON) scripts/config-doc

driver: modules ## NVIDIA's own kernel driver for the tests: KERNEL_DRIVER=550|535
	@scripts/setup-nvidia driver-$(or $(KERNEL_DRIVER),550)
	@scripts/build-driver $(or $(KERNEL_DRIVER),550) $(KERNEL)

test-driver: modules tools driver nvidia ## cgpu_km over NVIDIA's own kernel driver and a simulated card
	@$(VM) suite driver $(TEST)

test-vm: modules tools $(PACKAGES) $(USER_SPACE) $(NEWER_ENGINES) $(NVIDIA_MODULES) $(CLUSTER) ## one boot of KERNEL, KIND=plain|bare|icount|long|docker|engines|kube|systemd|cuda|cuda_nvcc|cuda_icount|driver|driver_two|driver_pair|driver_icount, TEST=name to choose
	@$(VM) suite $(or $(KIND),plain) $(TEST)

forward: modules tools driver nvidia ## cgpu_km in User-Mode Linux over NVIDIA's own kernel driver, in a machine with a simulated card: build/forward.json; STEPS='smi walk limit ratio'
	@scripts/build-uml uml
	@scripts/build-modules uml $(MODULE_OPTIONS)
	@KERNEL_DRIVER=550 NVIDIA=550 BARE=1 ICOUNT=1 CPUS=1 CPU_FEATURES=+xsave,+xsaveopt,+avx TIMEOUT=$(or $(TIMEOUT),3600) $(VM) run 'python tests/forward/rehearse.py $(STEPS)'

module-run: nvidia ## what tests/hardware/module-run takes to a machine with a card, in build/module-run: at most 64 MiB
	@scripts/build-uml uml
	@scripts/build-modules uml $(MODULE_OPTIONS)
	@tests/hardware/module-run --pack build/module-run

module-run-rehearsal: module-run ## the same on the simulated driver, in User-Mode Linux, with a stand-in for PyTorch: build/module-run-rehearsal/results.json
	@NVIDIA=550 BARE=1 KERNEL=uml VM_MEM=4G TIMEOUT=$(or $(TIMEOUT),3000) $(VM) run \
		'python tests/hardware/module-run --out build/module-run-rehearsal --memory 700M --slow $(or $(SLOW),5) --budget-s $(or $(BUDGET_S),2850) --standin'

record: modules nvidia ## record the traces of NVIDIA's user space again (docs/develop/replay.md): NVIDIA=535|550|555
	@NVIDIA=$(or $(NVIDIA),550) BARE=1 TIMEOUT=900 $(VM) run 'python tests/abi/replay/record.py run'
	@NVIDIA=$(or $(NVIDIA),550) $(PYTHON) tests/abi/replay/record.py write

fuzz: modules tools ## hours of wrong calls: SECONDS=3600 SEED=n KERNEL=6.1|6.12|debug OPTIONS='…'; adds a record
	@$(RECORD) fuzz $(or $(SECONDS),600) $(or $(SEED),$(shell date +%s)) $(OPTIONS)

fuzz-text: setup ## parsers of text under libFuzzer (Debian's clang and libclang-rt-dev): SECONDS=60 for each; keeps new inputs, adds records
	@$(PYTHON) tests/fuzz/text/targets.py $(or $(SECONDS),60)

soak: modules tools ## random containers and faults of the driver: MINUTES=60 SEED=n KERNEL=uml|uml-debug|6.1|6.12|debug; adds a record
	@$(RECORD) soak $(or $(MINUTES),60) $(or $(SEED),$(shell date +%s))

reliability: setup ## write docs/reliability.md from the records of make soak, fuzz and fuzz-text
	@$(RECORD) write

torch: NVIDIA = 550
torch: modules tools nvidia ## PyTorch on a slice (docs/develop/testing.md): downloads 2.5 GB once, or TORCH=<virtual environment>
	@scripts/setup-torch $(TORCH)
	@DOCKER=1 VM_MEM=8G TIMEOUT=$(or $(TIMEOUT),1800) CPU_FEATURES=+ssse3,+sse4.1,+sse4.2,+popcnt \
		$(VM) run 'tests/cuda/torch/run $(abspath $(or $(TORCH),build/torch))'

demo: ## the product at work on a simulated GPU
	@tests/demo/demo

real: ## the same with NVIDIA's own libcuda and nvidia-smi in the containers
	@tests/demo/demo real

bench-ioctl: modules tools ## instructions that a call costs more than on the driver alone
	@$(PYTHON) tests/bench/ioctl.py

bench-scale: modules tools ## the same beside 16 GPUs of 25 containers and 1,000 processes
	@$(PYTHON) tests/bench/ioctl.py --scale

bench-sched: modules tools ## every policy beside others' rules; build/bench-sched.json and time lines
	@$(PYTHON) tests/bench/sched_vm.py
	@$(PYTHON) tests/bench/sched.py --vm-rows build/bench-sched-vm.json

bench-quick: setup ## the same bars on fewer scenarios and one seed, a minute, or SEEDS=3; a level of make test
	@$(PYTHON) tests/bench/sched.py --quick $(if $(SEEDS),--seeds $(SEEDS))

bench-engine: modules tools ## what a container's start and end cost more, and what the daemon does
	@$(PYTHON) tests/bench/engine.py

bench: bench-ioctl bench-sched bench-engine ## every bench there is

setup-install: ## what make install needs: a compiler, Python; no engines, no QEMU, no kernels
	@scripts/setup install

setup-build: ## what make uml and make kube need: compilers and tools
	@scripts/setup build

setup-deb: ## what setup-install installs, and what making the packages needs (dkms, debhelper, lintian)
	@scripts/setup deb

setup-image: ## what make node-image, sysext and modules-image need besides what make install needs: patchelf, depmod, openssl
	@scripts/setup image

setup-test: setup setup-deb ## what make test needs, but for what one level alone downloads
	@scripts/setup-prometheus

wheel: setup-install ## cgpu's wheel and those of what it needs into build/wheels/
	@scripts/build-wheels

install: wheel ## programs, units, DKMS sources: PREFIX=/usr/local DESTDIR= UNITDIR= SYSTEM_PYTHON=/usr/bin/python3 (docs/user/install.md)
	@scripts/install install

uninstall: ## what make install has put there, with the same PREFIX and DESTDIR
	@scripts/install uninstall

deb: setup-deb wheel ## Debian packages cgpu and cgpu-dkms into build/deb/
	@scripts/deb

node-image: setup-image wheel ## the node installer's image, build/image/cgpu-node_*.tar: KERNELS='6.1 /lib/modules/RELEASE/build' adds modules; KEY= CERT= sign them
	@scripts/node-image node $(KERNELS)

sysext: setup-image wheel ## a system extension for hosts with a read-only /usr (Flatcar), build/image/sysext/RELEASE/cgpu.raw: KERNELS= as above; KEY= CERT=
	@scripts/node-image sysext $(KERNELS)

modules-image: setup-image ## modules alone, for Kernel Module Management: KERNEL=6.1 or a folder with headers; KEY= CERT= sign them
	@scripts/node-image modules $(KERNEL)

build-clang: setup ## both modules by clang, for its warnings: KERNEL=6.1|6.12
	@scripts/setup clang
	@scripts/build-clang $(KERNEL)

rpm: wheel ## rpm packages cgpu and cgpu-dkms into build/rpm/, for the distribution they are built on; needs rpmbuild
	@scripts/rpm

release: ## source, wheels, deb, rpm, chart, both images and checksums into build/release/, and the tag: WITHOUT='rpm image', KERNELS= of the node's
	@scripts/release

build-range: setup ## the modules against the oldest and newest kernel of each series and flavour that apt offers
	@scripts/build-range

clean: ## remove what was built, keep kernels and the Python environment
	rm -rf build/modules build/vm build/junit build/bin build/client build/sim build/rm build/rm.json build/bench build/bench-sched build/wheels build/site build/deb build/rpm build/release build/stage build/stage.inputs build/image build/clang build/ccache
