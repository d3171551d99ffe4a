// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/internal/documented"
)

// TestBoundsAreDocumented: whoever calls or runs a worker finds each of its bounds in a document, as it is.
func TestBoundsAreDocumented(t *testing.T) {
	const listeners, operations, contract = "docs/listeners.md", "docs/operations.md", "reference/api/openapi.yaml"
	says, size, time, text := documented.Says, documented.Size, documented.Time, fmt.Sprintf
	place := newOccupancy(8 * 100)
	if place.half != 400 || place.past != 100 || place.lasting != 600 || newOccupancy(8).past != 2 {
		t.Errorf("of 800 places: %+v", place)
	}
	outputs := outputShares(api.Limits{Execs: 1, ExecsPerSandbox: 1})
	documented.Check(t, "../..", []documented.Bound{
		says("", listeners, "one workspace has half of them busy at most;"),
		says("", listeners, "three quarters may be busy with what lasts: `create`, `exec`, `fs`, `read`, `write` and `events`, of all workspaces together;"),
		says("", listeners, "has "+time(disposeTimeout)+" for itself, as its body and its answer have, and comes past the half of its workspace, by an eighth of the places, 2 at least"),
		says("headerTimeout strangerBytes lingerTimeout", listeners, text("A stranger gets one answer (`/healthz` too, which proves nothing), %s, and %s. When its time ends while it is being answered it has %s more",
			time(headerTimeout), size(strangerBytes), time(lingerTimeout))),
		says("connectionGrace", listeners, "A stranger goes only after it has kept the worker waiting for "+time(connectionGrace)+", a known one only after "+time(connectionGrace)+" without a request."),
		says("DefaultConnections", listeners, text("with %d places and 4,096 strangers in the queue (`net.core.somaxconn`) 8 s", DefaultConnections)),
		says("maxStreams receiveBuffer maxParsedHeaderBytes", listeners, text("An HTTP/2 connection has %d streams at once, %s of body that is not yet read, and %s of headers for each request, of which %s are accepted.",
			maxStreams, size(receiveBuffer), size(maxParsedHeaderBytes), size(api.MaxHeaderBytes))),
		says("maxStreams", contract, text("Over HTTP/2 a connection has at most %d streams, and a header list beyond %s is answered with a bare 431", maxStreams, size(maxParsedHeaderBytes))),
		says("maxBodyBytes maxBodyBytesPerWorkspace", listeners, text("while they are read | %s | %s |", size(maxBodyBytes), size(maxBodyBytesPerWorkspace))),
		says("maxFileOps maxFileOpsPerWorkspace", listeners, text("| file operations (`fs`, `read`, `write`) | %d | %d |", maxFileOps, maxFileOpsPerWorkspace)),
		says("minOutputs", listeners, text("%s for each of `limits.execs`, at least %s, and the share of one workspace besides | a quarter of the former", size(api.MaxOutputBytes), size(outputs.most-outputs.each))),
		says("idleTimeout bodyTimeout answerTimeout nonceTimeout", listeners, text("Times: %s for the headers of a request, %s without one, %s for a JSON body, %s for an answer, or for one line or event of a stream, and %s for the store",
			time(headerTimeout), time(idleTimeout), time(bodyTimeout), time(answerTimeout), time(nonceTimeout))),
		says("peerInterval", listeners, "that has closed its connection is missed within "+time(peerInterval)+"."),
		says("lingerTimeout", listeners, "The body of a refused request is read for "+time(lingerTimeout)+" more at most"),
		says("createTimeout", contract, "expected now; they are judged for a new one, `UNQUALIFIED`. Deadline: "+time(createTimeout)+"."),
		says("disposeTimeout", contract, "asking again gives it. Deadline: "+time(disposeTimeout)+"."),
		says("fsTimeout", contract, "A member that the operation does not use is refused. Deadline: "+time(fsTimeout)+"."),
		says("execGrace", contract, "`TIMEOUT` says that nothing has begun and that the id is free. Deadline: `timeoutMs` and "+time(execGrace)+"."),
		says("transferTimeout", contract, text("Deadline: %s, and %s for each %s.", time(transferTimeout), time(answerTimeout), size(transferChunk))),
		says("transferTimeout", contract, text("Deadline: %s, and %s without progress.", time(transferTimeout), time(bodyTimeout))),
		says("heartbeatEvery", contract, "Every "+time(heartbeatEvery)+" without output there is a `heartbeat`."),
		says("heartbeatEvery", contract, "Every "+time(2*heartbeatEvery)+" there is a comment."),
		says("lastWords", listeners, "The end of a stream of changes has "+time(lastWords)+" to reach its reader."),
		says("maxConfigBytes", operations, "Strict JSON of at most "+size(maxConfigBytes)),
		says("maxCauseBytes", operations, "the cause that the caller is not told, at most "+size(maxCauseBytes)+" of it."),
		says("strangerLines strangerEvery", operations, text("at most %d lines in %s", strangerLines, time(strangerEvery))),
	}, map[string]string{
		"minSecretBytes": "what is shorter is no capability, and would cut holes into the log",
	})
}
