# Logic lives in Go; each target is one line of real commands. `make` alone builds.
.PHONY: build test conformance control mutants doctor lint clean
TIER ?= full

build:
	go run ./ci/build/run
test:
	go run ./ci/build/run -need-root && go run ./ci/check
conformance:
	go run ./ci/build/run -need-root && bin/hallmark conformance --tier $(TIER)
control:
	go run ./ci/build/run -need-root && bin/hallmark control
mutants:
	go run ./ci/build/run -need-root && bin/hallmark mutants
doctor:
	go run ./ci/build/run && bin/hallmark doctor
lint:
	go vet ./... && test -z "$$(gofmt -l .)"
clean:
	rm -rf bin out .cache
