# Everything that this project does on a developer's machine. Needs rustup and a C compiler; says what is missing.
SHELL := /bin/bash -eu -o pipefail
CARGO ?= cargo
HOSTLER := target/debug/hostler
COMPONENTS := target/components
GUESTS := $(wildcard plugins/driver-* plugins/resolver-* policies/resolver-* policies/policy-*)
FIXTURES := $(wildcard tests/guests/*)
# Where `make kubernetes` puts what it builds, kubectl among it.
KUBERNETES := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hostler/kubernetes/v1.36.3/bin
# Tests at a time: many wait for a lease to run out, or for an API that never answers.
AT_ONCE := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# With LINTED set, what is ours is linted as it is compiled, benches too: `.ci/run` looks at nothing twice. Guests are built as ever.
LINTS := $(if $(LINTED),--config 'build.rustc-workspace-wrapper=".ci/lint"')

.PHONY: kubernetes all lab lab-once test compiled tested real e2e timeline plugins fixtures binary bench scale fmt clippy clippy-guests tools clean

all: plugins

## lab: build everything, start the laboratory with examples/01-lab, and stay
lab: plugins
	$(HOSTLER) lab --apply examples/01-lab

## lab-once: the same, ending when everything is Available
lab-once: plugins
	$(HOSTLER) lab --apply examples/01-lab --once

## test: every test; those on real clusters, too, where their binaries are or can be built
test: tools
	@tests/kubernetes/beside begin
	$(MAKE) compiled
	$(MAKE) plugins fixtures BUILT=1
	@tests/kubernetes/beside wait
	$(MAKE) tested
	@$(MAKE) --no-print-directory real

# The steps of `test`, as .ci/run takes them.
compiled: tools
	$(CARGO) $(LINTS) build --profile test --workspace --lib --bins --tests $(if $(LINTED),--benches)
	CARGO=$(CARGO) tests/kubernetes/client

tested:
	PATH="$$PATH:$(KUBERNETES)" RUST_TEST_THREADS=$(AT_ONCE) $(CARGO) $(LINTS) test --workspace

# Suites of the whole host that `real` runs a second time, on etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
# Those of the manifests are on real clusters the first time; the claims of earlier definitions change definitions in use.
REAL := scenarios:: transcript::the_seeds_transcript user::profiles:: crashes:: races:: safety:: upgrade:: real:: --skip manifests:: --skip races::changed::earlier::

## real: the whole host's suites on real clusters; needs what `make kubernetes` builds
real:
	@if tests/kubernetes/beside check; then set -x; \
	  PATH="$(KUBERNETES):$$PATH" RUST_TEST_THREADS=$(AT_ONCE) HOSTLER_STACK=real $(CARGO) $(LINTS) test --workspace --test all -- --include-ignored $(REAL); fi

## timeline: the seed's timeline on real clusters, with machines that take no time
timeline: compiled
	$(MAKE) plugins BUILT=1
	@tests/kubernetes/beside check
	PATH="$(KUBERNETES):$$PATH" HOSTLER_STACK=real $(CARGO) $(LINTS) test --workspace --test all -- --ignored --exact --nocapture timeline::the_seeds_timeline

## plugins: build our components into target/components
plugins: binary
	$(HOSTLER) plugin build $(GUESTS) --out $(COMPONENTS)

## fixtures: build the components that only tests load
fixtures: binary
	$(HOSTLER) plugin build $(FIXTURES) --out target/fixtures

# With BUILT set it is there, built among all else: alone it has fewer features of its dependencies, and much would be built twice.
binary: tools
	$(if $(BUILT),,$(CARGO) build -p hostler-cli)

## e2e: Kubernetes' own tests of the API machinery, on our API server and on the real one; E2E=part narrows them to those named so
e2e:
	tests/kubernetes/build
	tests/kubernetes/build e2e.test
	PATH="$(KUBERNETES):$$PATH" $(CARGO) test --workspace --test all -- --nocapture e2e::

## kubernetes: build the real control plane, which the tests compare ours with, into a cache of this user
kubernetes:
	tests/kubernetes/build

## bench: figures for docs/performance.md; what is measured is optimised, the client that measures is not
bench: plugins
	$(CARGO) build --release -p hostler-cli
	$(CARGO) bench --profile dev -p hostler-tests --bench figures

## scale: 100 tenants with 20 machines each on a real platform, as a report; TENANTS and MACHINES say other numbers
# The real platform collects its garbage as it does everywhere: the tests' limit on it is too low for so many objects.
scale: plugins
	@tests/kubernetes/beside check
	$(CARGO) build --release -p hostler-cli
	GOGC=100 GOMEMLIMIT=off $(CARGO) bench -p hostler-tests --bench scale

fmt:
	$(CARGO) fmt --all --check

clippy: clippy-guests
	$(CARGO) clippy --workspace --all-targets -- -D warnings

clippy-guests: tools
	$(CARGO) clippy --profile guest --target wasm32-unknown-unknown $(foreach guest,$(GUESTS) $(FIXTURES),-p $(notdir $(guest))) -- -D warnings

# The toolchain in rust-toolchain.toml is installed by rustup on first use; the targets it names are too.
tools:
	@command -v $(CARGO) >/dev/null || { echo "missing: cargo. Install rustup: https://rustup.rs"; exit 1; }
	@command -v cc >/dev/null || { echo "missing: a C compiler (cc). On Debian: apt-get install gcc"; exit 1; }
	@if command -v rustup >/dev/null; then rustup target list --installed | grep -qx wasm32-unknown-unknown \
	  || rustup target add wasm32-unknown-unknown; \
	else echo "note: no rustup; the target wasm32-unknown-unknown must be installed already"; fi

clean:
	rm -rf target/components target/fixtures .lab
