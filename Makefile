# The one command surface, for people and for CI. `make` alone prints the list.
.DEFAULT_GOAL := help
SHELL := /bin/bash
# uv: the one on the path, the one this Makefile has installed, the user's, else install it here.
UV_HERE := .uv/bin/uv
UV := $(firstword $(shell command -v uv) $(wildcard $(UV_HERE) $(HOME)/.local/bin/uv) $(UV_HERE))
# With all that `make setup` installs, so that each target runs on a fresh clone.
RUN := $(UV) run --frozen --all-packages --all-groups
# More than processors: tests wait for disks, servers and clocks half of their time.
PYTEST_WORKERS ?= 5

# Tests start hundreds of processes: each would compile all sources again, for a third of a second or more.
unexport PYTHONDONTWRITEBYTECODE

TARGETS := help setup run cluster compile decompile test test-compiled lint fix generate sim sim-brokers sim-shadows \
  sim-operator interchange storm faults admin-cli e2e bench bench-bookies bench-cluster bench-spark scale images \
  kube-up kube-down e2e-clients e2e-spark e2e-kubernetes damage floods histories mutants power
.PHONY: $(TARGETS)

# Any target may be the first one on a machine without uv.
$(filter-out help decompile,$(TARGETS)): | $(filter $(UV_HERE),$(UV))

# Compiled modules win over their sources: those that are out of date would run instead of what was edited.
SOURCES_RUN := test sim sim-brokers sim-shadows sim-operator histories interchange storm damage power faults floods \
  admin-cli e2e-kubernetes
.PHONY: .stale-removed
$(SOURCES_RUN): | .stale-removed
.stale-removed: | $(filter $(UV_HERE),$(UV))
	@$(RUN) python tools/compile.py --remove-stale

help: ## Show this list; times are rough ones, on two cores
	@if [ -t 1 ] && [ -z "$$NO_COLOR" ] && [ "$$TERM" != dumb ]; then on=$$'\033[36m' off=$$'\033[0m'; fi; \
	  awk -v on="$$on" -v off="$$off" 'BEGIN{FS=":.*## "} /^[a-z0-9-]+:.*## /{printf "  %s%-14s%s %s\n",on,$$1,off,$$2}' \
	    $(MAKEFILE_LIST)

setup: ## Install everything the lock names into .venv; the first time some minutes
	$(UV) sync --frozen --all-packages --all-groups

# Debian keeps pip out of its own Python, and venv in a package of its own: what works first is taken.
$(UV_HERE):
	@echo "Installing uv into .uv"
	@{ python3 -m venv .uv && .uv/bin/python -m pip install --quiet uv; } 2>/dev/null \
	  || { rm -rf .uv; mkdir -p .uv/bin \
	    && { python3 -m pip install --quiet --user uv 2>/dev/null || python3 -m pip install --quiet --user --break-system-packages uv; } \
	    && ln -s "$$(python3 -m site --user-base)/bin/uv" $@; } \
	  || { rm -rf .uv; echo "Cannot install uv: install it by hand, or python3-venv, and try again." >&2; exit 1; }

# Without a C compiler, or with COMPILE=no, what runs is plain Python.
define COMPILED
@$(if $(filter no,$(COMPILE)),:,$(MAKE) --no-print-directory compile) \
  || echo "Not compiled: running as plain Python, which is slower." >&2
endef

run: .venv/ready ## Run a standalone cluster; ARGS="--port 0 --http-port 0 --fresh"; COMPILE=no compiles nothing
	$(COMPILED)
	@exec .venv/bin/magnetar standalone $(ARGS)

cluster: setup ## ZooKeeper, 4 bookies, 3 brokers and a proxy, here, until Ctrl-C; COMPILE=no ARGS=--help for options
	$(COMPILED)
	@exec .venv/bin/python -m e2e.cluster $(ARGS)

# Without the peers that only tests need; what `make setup` has installed stays.
.venv/ready: uv.lock $(filter $(UV_HERE),$(UV))
	$(UV) sync --frozen --all-packages --inexact
	@touch $@

# What is compiled lies beside the sources; nothing at all there means that this is the first time.
compile: .venv/ready ## Compile the hot modules in place, if they changed; 1 to 2 minutes (needs a C compiler)
	@$(if $(wildcard lib/src/*.so),,echo "Compiling the hot modules, which takes a minute or two.")
	@$(if $(shell command -v cc),.venv/bin/python tools/compile.py,echo "There is no C compiler." >&2; false)

decompile: ## Remove compiled modules: everything runs as plain Python again
	@python3 tools/compile.py --remove

lint: ## Formatting, ruff, types, import contracts, generated modules; some minutes
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python tools/generate_protobuf.py --check
	$(RUN) python tools/generate_crds.py --check
	$(RUN) python -m tools.charts.generate --check
	$(RUN) python -m tools.generate_spark_options --check
	$(RUN) python -m tools.tidy

fix: ## Format and repair what can be repaired
	$(RUN) ruff check --fix . ; $(RUN) ruff format .

generate: ## Write again what is made from sources: protobuf modules, CRDs, charts' values, tables of options
	$(RUN) python tools/generate_protobuf.py
	$(RUN) python tools/generate_crds.py
	$(RUN) python -m tools.charts.generate
	$(RUN) python -m tools.generate_spark_options

test: ## Unit, contract, fault and stock-client tests; some minutes; ARGS="-k word" for options
	$(RUN) pytest -n $(PYTEST_WORKERS) --dist worksteal $(ARGS)

test-compiled: ## The same unit tests against compiled hot modules, in a copy below build/; some minutes
	$(RUN) python -m tools.run_compiled_tests -n $(PYTEST_WORKERS) $(ARGS)

sim: ## Storage on simulated time, network, disks, 1 000 seeds; 5 minutes; SEED=n, ARGS="--mistake all"
	$(RUN) python -m e2e.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

sim-brokers: ## Whole broker clusters on simulated time, 1 000 seeds; 5 minutes; SEED=n, ARGS="--mistake all"
	$(RUN) python -m e2e.broker_simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

sim-shadows: ## Shadow topics on simulated time, 500 seeds; 10 minutes; SEED=n, ARGS="--mistake all"
	$(RUN) python -m e2e.broker_simulation.shadows $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500)) $(ARGS)

histories: ## Managed ledgers and cursors under random faults, 2 000 seeds; 2 minutes; SEED=n replays one
	$(RUN) python -m e2e.managed_histories $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000)) $(ARGS)

sim-operator: ## The operator in simulated time, a faulty API server, 1 000 seeds; 15 minutes; SEED=n replays one
	$(RUN) python -m e2e.operator_simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

mutants: ## Plant mistakes of one line: which does nobody notice? An hour; ARGS="--module recovery --list"
	$(RUN) python -m tools.mutants $(ARGS)

# Brokers of either side go on where the other one was: with transactions, compaction, topic policies and offloads.
SWAPS := $(addprefix e2e/cluster/test_,transactions_interchange.py transaction_coordinators.py \
  compaction_interchange.py topic_policies_interchange.py offload_interchange.py)

interchange: ## Our parts and Apache's in each other's place; 25 minutes (Java and Maven, or the distribution)
	$(RUN) pytest e2e/interchange $(SWAPS) $(ARGS)

# What COUNT makes of the first number where it stands for the second one: its share, rounded up.
part = $(if $(COUNT),$(shell echo $$(( ($(1) * $(COUNT) + $(2) - 1) / $(2) ))),$(1))
RIDE = $(if $(SEED),--seed $(SEED)) $(ARGS)

storm: ## Bookies killed, paused, cut off, stalled, under load; 20 minutes; COUNT=1 (a hundredth): 3 minutes
	$(RUN) python -m e2e.storage.storm --fault kill --count $(call part,100,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault session --count $(call part,10,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault pause --count $(call part,3,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault clock --count $(call part,5,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault stall --count $(call part,10,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault answers --count $(call part,20,100) $(RIDE)
	$(RUN) python -m e2e.storage.storm --fault stops --count $(call part,10,100) $(RIDE)
	$(if $(COUNT),,$(RUN) pytest e2e/storage)

damage: ## Every file of a standalone damaged in every way; some minutes; ROUNDS=3, SEED=n, ARGS="--pool"
	$(RUN) python -m e2e.damage --rounds $(or $(ROUNDS),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

power: ## Power cuts on real files: what was not synced is lost, torn; 10 minutes; SEED=n, SEEDS=n, CUTS=n
	$(RUN) python -m e2e.power --subject standalone --seeds $(or $(SEEDS),3) --cuts $(or $(CUTS),40) $(if $(SEED),--seed $(SEED)) $(ARGS)
	$(RUN) python -m e2e.power --subject bookie --seeds $(or $(SEEDS),3) --cuts $(or $(CUTS),40) $(if $(SEED),--seed $(SEED)) $(ARGS)

faults: ## Parts of a cluster killed, paused, cut off; up to an hour; COUNT=1 (a fifth): a quarter of it
	$(RUN) python -m e2e.cluster.storm --fault owner --count $(call part,5,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault proxy --count $(call part,5,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault zookeeper --count $(call part,5,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault session --count $(call part,3,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault pause --count $(call part,3,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault unloads --count $(call part,1000,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault rolling --count $(call part,3,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault clock --count $(call part,5,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault stall --count $(call part,5,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault answers --count $(call part,10,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault stops --count $(call part,10,5) $(RIDE)
	$(RUN) python -m e2e.cluster.storm --fault mixed --count $(call part,15,5) $(RIDE)

floods: ## Clients that do not read, or send halves, beside a stock one: memory, pace; 3 minutes; ARGS=--quick
	$(RUN) python -m e2e.floods.run $(ARGS)

admin-cli: ## pulsar-admin and pulsarctl print against our cluster what they print against Apache's; some minutes
	$(RUN) pytest -q e2e/local/test_admin_cli.py $(ARGS)

e2e: e2e-clients e2e-spark e2e-kubernetes ## e2e-clients, e2e-spark and e2e-kubernetes, one after the other; hours; ends with a table

e2e-clients: compile ## Stock clients at full length (100 000 messages each), pulsar-admin, fifty kills; tens of minutes
	$(RUN) python -m e2e.run_clients --count $(or $(COUNT),100000)
	$(RUN) pytest -q e2e/local/test_features.py e2e/local/test_admin_cli.py
	$(RUN) python -m e2e.local.kill_loop $(if $(SEED),--seed $(SEED))
	$(RUN) python -m e2e.local.key_shared_churn --seconds 120 $(if $(SEED),--seed $(SEED))
	$(RUN) python -m e2e.local.key_shared_churn --seconds 120 --ranges $(if $(SEED),--seed $(SEED))
	$(RUN) python -m e2e.transactions $(if $(SEED),--seed $(SEED))

e2e-spark: compile ## Our data source and the JVM connector on each other's topics; tens of minutes (needs Java 17)
	$(RUN) pytest -q e2e/spark $(ARGS)

bench: compile ## Side by side with Apache Pulsar, by two generators; hours; ARGS="--quick"
	$(RUN) python -m bench.run $(ARGS)

bench-bookies: compile ## Our bookies beside Apache's, BookKeeper's own client; tens of minutes; ARGS="--quick" is shorter
	$(RUN) python -m bench.bookies.run $(ARGS)

bench-cluster: compile ## Our cluster beside Apache's: unloads, proxies, lookups, replication; tens of minutes; ARGS="--quick"
	$(RUN) python -m bench.cluster.run $(ARGS)

bench-spark: compile ## Cold scans from Spark beside the JVM connector, Parquet, cat; half an hour; ARGS="--quick"
	$(RUN) python -m bench.spark.run $(ARGS)

scale: compile ## 100 000 topics, 10 000 connections to a broker, 8 000 through a proxy, here; 7 minutes
	$(RUN) python -m bench.cluster.scale $(ARGS)

images: ## Container images; first 4 to 7 minutes; VERSION, REGISTRY, PUSH=yes, BASE_IMAGE, BUILDER, IMAGES=...
	$(RUN) python -m e2e.kubernetes.build_images $(if $(REGISTRY),--repository $(REGISTRY)) $(if $(VERSION),--version $(VERSION)) \
	  $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE)) $(if $(BUILDER),--builder $(BUILDER)) $(if $(PUSH),--push) $(IMAGES)

kube-up: ## A real single-node Kubernetes here (Debian 12, root; KUBERNETES_ROOT); first 10 to 13 minutes
	$(RUN) python -m e2e.kubernetes up

kube-down: ## Stop it; ARGS=--purge forgets its state and volumes, ARGS=--purge-images its images too
	$(RUN) python -m e2e.kubernetes down $(ARGS)

e2e-kubernetes: ## The operator on a real Kubernetes (one that is there, kind, or ours); hours; PART=quick: 20 minutes
	$(RUN) python -m e2e.kube --part $(or $(PART),full) $(ARGS)
