# Logic lives in Go; each target is one line of real commands. `make` alone builds.
.PHONY: build test conformance control mutants alternatives vm-conformance fuzz bench doctor clean
TIER ?= full
GO = $(or $(shell go version 2>&1 | grep -qE 'version go(1\.(2[6-9]|[3-9][0-9])|[2-9])' && echo go),$(error Go 1.26 or newer is not on PATH. Get it from https://go.dev/dl, or let sudo keep yours: sudo env "PATH=$$PATH" make $@))

build:
	$(GO) run ./ci/build/run
test:
	$(GO) run ./ci/build/run -need-root && $(GO) run ./ci/check
conformance:
	$(GO) run ./ci/build/run -need-root && bin/hallmark conformance --tier $(TIER)
control:
	$(GO) run ./ci/build/run -need-root && bin/hallmark control
mutants:
	$(GO) run ./ci/build/run -need-root && bin/hallmark mutants
alternatives:
	$(GO) run ./ci/build/run -need-root && bin/hallmark alternatives
vm-conformance:
	$(GO) run ./ci/build/run -need-root && bin/hallmark vm-conformance
fuzz:
	$(GO) run ./ci/fuzz
bench:
	$(GO) run ./ci/build/run -need-root && $(GO) run ./ci/bench
doctor:
	$(GO) run ./ci/build/run && bin/hallmark doctor
clean:
	rm -rf bin out .cache
